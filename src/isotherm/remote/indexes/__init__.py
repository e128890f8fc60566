"""Indexes of remote segments on the local disk."""
