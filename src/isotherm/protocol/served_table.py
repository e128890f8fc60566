"""The table of served APIs as people read it, for the README and the command line."""

from __future__ import annotations

from isotherm.protocol.api_versions import SERVED, ApiKey


def served_table() -> list[tuple[int, str, str]]:
    """(key, Kafka's name of the API, versions as "0-3" or "0"), by key."""
    return [
        (int(key), _name(ApiKey(key)), str(low) if low == high else f"{low}-{high}")
        for key, (low, high) in sorted(SERVED.items())
    ]


def _name(api_key: ApiKey) -> str:
    return "".join(word.capitalize() for word in api_key.name.split("_"))
