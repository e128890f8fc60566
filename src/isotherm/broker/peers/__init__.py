"""Blocking requests to other nodes of the cluster, from threads of their own."""
