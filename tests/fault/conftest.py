"""After every test its bucket is compared with its metadata."""

from tests.support.scrubbed_buckets import scrubbed_buckets

__all__ = ["scrubbed_buckets"]
