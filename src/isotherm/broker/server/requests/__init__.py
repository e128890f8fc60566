"""The context of a request: its declaration, the broker's services, quotas."""
