"""The remote tier in this broker, and the metadata topic in its own logs."""
