"""Authorization: principals, ACLs, and the checks before each API."""
