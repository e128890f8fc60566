"""Who a client is: the SASL exchanges of a listener."""
