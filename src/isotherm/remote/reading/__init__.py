"""Reads of remote segments: ranges in memory, fetched ahead and checked."""
