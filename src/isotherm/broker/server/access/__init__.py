"""Authorization: the checks before each API."""
