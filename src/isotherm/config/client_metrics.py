"""Configuration of a subscription to clients' metrics (ClientMetricsConfigs in Kafka, KIP-714)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from isotherm.config.definition import INT, LIST, Check, between, key, parse_fields
from isotherm.errors import InvalidRegularExpressionError
from isotherm.patterns import java_pattern

_MATCHED = ("client_instance_id", "client_id", "client_software_name", "client_software_version",
            "client_source_address", "client_source_port")  # fmt: skip
_HOUR_MS = 3_600_000


def _is_pattern(text: str) -> bool:
    name, separator, pattern = text.partition("=")
    try:
        # A client chooses it. Kafka compiles it in Java's syntax (ClientMetricsConfigs).
        java_pattern(pattern.strip())
    except InvalidRegularExpressionError:
        return False
    return bool(separator) and "=" not in pattern and name.strip() in _MATCHED


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsConfig:
    """The keys of a subscription. Subscriptions are stored and shown, but no client is asked for
    metrics. A Kafka broker without a plug-in that receives metrics does the same."""

    metrics: tuple[str, ...] = key(LIST, (), "Prefixes of the names of metrics; * for all.")
    interval_ms: int = key(
        INT, 300_000, "How often clients send them.", check=between(100, _HOUR_MS)
    )
    match: tuple[str, ...] = key(
        LIST,
        (),
        "Which clients, as name=pattern.",
        check=Check(
            lambda items: all(_is_pattern(item) for item in items),
            "a list of name=pattern, each name one of " + ", ".join(_MATCHED),
        ),
    )

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Self:
        """Parse a subscription. Raises ConfigError, which names the key."""
        return cls(**parse_fields(cls, texts))
