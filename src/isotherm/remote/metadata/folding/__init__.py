"""States computed from events, record by record and by columns."""
