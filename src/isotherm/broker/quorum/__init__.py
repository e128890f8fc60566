"""Membership in a cluster that is led by Apache Kafka's controllers (KRaft)."""
