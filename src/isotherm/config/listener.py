"""Listeners: NAME://host:port."""

from __future__ import annotations

import re
from typing import NamedTuple

_LISTENER = re.compile(r"^([A-Za-z][A-Za-z0-9_]*)://(\[[0-9a-fA-F:.]*\]|[^:\[\]/]*):([0-9]+)$")

_PORT_MAX = 65535


class Listener(NamedTuple):
    """One address. An empty host means every interface; port 0 means any free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listener(text: str) -> Listener:
    """ValueError unless the text is NAME://host:port of a plain-text listener."""
    match = _LISTENER.match(text.strip())
    if match is None:
        raise ValueError(f"a listener is written NAME://host:port text={text!r}")
    if int(match[3]) > _PORT_MAX:
        raise ValueError(f"a port is 0 to {_PORT_MAX} port={match[3]} text={text!r}")
    name = match[1].upper()
    if name != "PLAINTEXT":
        raise ValueError(f"only PLAINTEXT listeners are served name={name}")
    return Listener(name, match[2].strip("[]"), int(match[3]))
