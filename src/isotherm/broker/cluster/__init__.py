"""The differences between a broker with the embedded controller and a member of a KRaft cluster."""
