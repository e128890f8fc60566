"""The executors: from tasks to proven rows."""
