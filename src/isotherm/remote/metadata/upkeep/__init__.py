"""Migration to level 1, and clearing what is left over."""
