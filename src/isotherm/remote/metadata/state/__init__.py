"""The state of remote segments, and their valid transitions."""
