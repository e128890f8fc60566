"""The remote tier of this broker, and its metadata topic."""
