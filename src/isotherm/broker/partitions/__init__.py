"""The partitions that this broker leads or follows, and reads of them."""
