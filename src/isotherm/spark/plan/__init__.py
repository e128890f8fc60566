"""Offsets, segments and tasks. PURE."""
