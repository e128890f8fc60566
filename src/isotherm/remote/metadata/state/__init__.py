"""The state of remote segments, and which states may follow."""
