"""The metadata topic: reading, following and writing it."""
