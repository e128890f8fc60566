"""DescribeConfigs and AlterConfigs of every kind of resource."""
