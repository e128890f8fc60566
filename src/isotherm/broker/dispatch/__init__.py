"""From a frame to the API that answers it."""
