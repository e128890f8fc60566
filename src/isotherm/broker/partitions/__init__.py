"""The partitions that this broker leads, and reads of them."""
