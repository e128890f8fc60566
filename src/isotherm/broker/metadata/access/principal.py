"""The identity of a client, as Kafka's KafkaPrincipal."""

from __future__ import annotations

from typing import NamedTuple

USER = "User"


class Principal(NamedTuple):
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


# Every client of a listener without authentication.
ANONYMOUS = Principal(USER, "ANONYMOUS")


def parse_principal(text: str) -> Principal:
    """Parse TYPE:NAME.

    Raises ValueError for another format. Source: Kafka SecurityUtils.parseKafkaPrincipal.
    """
    principal_type, colon, name = text.partition(":")
    if not colon or not principal_type or not name:
        raise ValueError(f"expected a string in format principalType:principalName but got {text}")
    return Principal(principal_type, name)
