"""Which segments and batches are the history of a partition."""
