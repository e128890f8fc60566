"""Replicas of partitions on other brokers: followers of this one's, and leaders that it follows."""
