"""The cluster's metadata as every broker sees it: records, images, and what follows from them."""
