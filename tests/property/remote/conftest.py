"""Every bucket that a test leaves behind is held against its metadata."""

from tests.support.scrubbed_buckets import scrubbed_buckets

__all__ = ["scrubbed_buckets"]
