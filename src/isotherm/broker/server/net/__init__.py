"""Listeners, connections and their limits."""
