"""DescribeConfigs and AlterConfigs for every type of resource."""
