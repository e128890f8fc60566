"""Clients that Isotherm has of its own, for what librdkafka cannot do."""
