"""The driver: finds the readable offsets, and plans tasks."""
