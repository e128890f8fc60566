"""The address of a listener as clients see it."""

from __future__ import annotations

from typing import NamedTuple


class Endpoint(NamedTuple):
    """The advertised host and port of a listener. The port is never 0."""

    listener_name: str
    host: str
    port: int
