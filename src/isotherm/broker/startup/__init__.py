"""The steps of a start before the first request."""
