"""A tier as driver and executors both use it: its settings, storage and segments."""
