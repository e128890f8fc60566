"""Metadata of segments for jobs: the whole metadata topic, its fold, its projection, rows."""
