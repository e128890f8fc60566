"""Isotherm: Kafka tiered storage in Python. See docs/architecture.md for the map of the
packages."""

__version__ = "0.1.0"
