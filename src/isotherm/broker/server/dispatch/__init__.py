"""The way of a frame to the API that handles it."""
