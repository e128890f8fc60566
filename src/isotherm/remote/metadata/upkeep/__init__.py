"""Migration to level 1, and removal of leftovers."""
