"""The driver: from options to tasks."""
