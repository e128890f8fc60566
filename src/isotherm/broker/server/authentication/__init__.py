"""Authentication of clients: the SASL exchanges of a listener, and TLS."""
