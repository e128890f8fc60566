"""The fixture that compares every bucket that a test leaves behind with its metadata."""

from tests.support.scrubbed_buckets import scrubbed_buckets

__all__ = ["scrubbed_buckets"]
