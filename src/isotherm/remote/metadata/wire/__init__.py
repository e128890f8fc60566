"""Records of the metadata topic, byte for byte."""
