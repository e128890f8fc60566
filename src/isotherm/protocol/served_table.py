"""The table of served APIs as people read it: for the site's reference and the command line."""

from __future__ import annotations

from isotherm.protocol.api_versions import SERVED, ApiKey


def served_table() -> list[tuple[int, str, str]]:
    """(key, Kafka's name of the API, versions as "0-3" or "0"), by key."""
    return [
        (int(key), api_name(key), str(low) if low == high else f"{low}-{high}")
        for key, (low, high) in sorted(SERVED.items())
    ]


def api_name(api_key: int) -> str:
    """Kafka's name of an API, as its metrics have it too."""
    return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))
