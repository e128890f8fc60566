"""Sockets: listeners, connections, their bounds."""
