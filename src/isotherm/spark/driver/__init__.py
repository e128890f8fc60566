"""The driver: what there is to read, and which tasks read it."""
