"""Addresses of brokers and controllers, and the list of them in `bootstrap.servers`."""

from __future__ import annotations

import re
from typing import NamedTuple

from isotherm.errors import ConfigError

_DEFAULT_PORT = 9092
_ADDRESS = re.compile(
    r"(?:\w+://)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/,\s]+)(?::(?P<port>\d+))?"
)


class NodeAddress(NamedTuple):
    """Where a broker or controller listens. The host of IPv6 has no brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bootstrap_addresses(text: str) -> list[NodeAddress]:
    """Parse `host:port,host` as librdkafka does. Raises ConfigError for an invalid address."""
    addresses = [_address(part.strip()) for part in text.split(",") if part.strip()]
    if not addresses:
        raise ConfigError("no broker is named key=bootstrap.servers")
    return addresses


def _address(text: str) -> NodeAddress:
    match = _ADDRESS.fullmatch(text)
    if match is None or text.lower().startswith(("http://", "https://")):
        raise ConfigError(
            f"not an address of a broker key=bootstrap.servers value={text!r} hint='HOST:PORT'"
        )
    port = int(match["port"] or _DEFAULT_PORT)
    if not 1 <= port <= 65535:
        raise ConfigError(f"a port is 1 to 65535 key=bootstrap.servers value={text!r} port={port}")
    return NodeAddress(match["host"].strip("[]"), port)
