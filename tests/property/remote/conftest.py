"""Every bucket that a test leaves behind is held against its metadata."""

from isotherm.testing.bucket_scrub import scrubbed_buckets

__all__ = ["scrubbed_buckets"]
