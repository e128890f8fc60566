"""Replication between brokers: the followers of this broker's partitions, and the leaders that
it follows.
"""
