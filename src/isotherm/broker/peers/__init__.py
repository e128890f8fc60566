"""How this process talks to the other nodes of its cluster: blocking, from threads."""
