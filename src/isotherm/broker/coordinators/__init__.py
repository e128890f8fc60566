"""The group coordinator, the transaction coordinator, and what both stand on: a topic that stores their state."""
