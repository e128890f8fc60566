"""The cluster's metadata: records, images, and the configurations derived from them."""
