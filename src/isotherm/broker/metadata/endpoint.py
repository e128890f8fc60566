"""The address of a listener as clients see it."""

from __future__ import annotations

from typing import NamedTuple


class Endpoint(NamedTuple):
    """The address of a listener for clients: the advertised host and port, never port 0."""

    listener_name: str
    host: str
    port: int
