"""Threads beside the event loop: what runs in them, how long they hold it up, how they end."""
