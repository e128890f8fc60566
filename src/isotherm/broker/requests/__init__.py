"""The surroundings of a request: its declaration, the broker's services, quotas."""
