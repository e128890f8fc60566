"""The manifest of a segment, and its chunk index."""
