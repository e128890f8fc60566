"""Where the bytes of a cluster's topics lie: local disks, the remote tier, or both. For people to look at."""
