"""Membership in a cluster whose controllers are Apache Kafka's (KRaft)."""
