"""Who may do what: principals, ACLs, and the checks before each API."""
