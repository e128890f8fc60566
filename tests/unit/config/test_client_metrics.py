"""The patterns of a subscription to clients' metrics, which clients choose."""

from __future__ import annotations

import pytest

from isotherm.config.client_metrics import ClientMetricsConfig
from isotherm.errors import ConfigError
from isotherm.patterns import PATTERN_LENGTH_MAX


@pytest.mark.parametrize("pattern", ["orders-.*", r"\p{Alpha}+", r"\Qa.b\E", "(a|b)*c"])
def test_pattern_in_javas_syntax_is_accepted(pattern: str) -> None:
    assert ClientMetricsConfig.parse({"match": f"client_id={pattern}"}).match == (
        f"client_id={pattern}",
    )


@pytest.mark.parametrize(
    "pattern", ["(", r"(a)\1", "a" * (PATTERN_LENGTH_MAX + 1)], ids=["open", "back", "long"]
)
def test_pattern_that_is_not_run_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="match"):
        ClientMetricsConfig.parse({"match": f"client_id={pattern}"})
