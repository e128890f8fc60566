"""From a frame to its answer."""
