"""Decides which segments and batches belong to the history of a partition."""
