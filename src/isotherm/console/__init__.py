"""`isotherm console`: pages for people that show the tiers of a cluster. It only reads."""
