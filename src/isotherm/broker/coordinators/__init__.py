"""The group and the transaction coordinator, and the topics that store their state."""
