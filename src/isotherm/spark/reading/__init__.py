"""The executors' part: turns tasks into verified rows."""
