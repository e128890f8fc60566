"""When a repartition that follows its topic makes another run."""

from __future__ import annotations

import pytest

from isotherm.errors import ConfigError
from isotherm.spark.jobs.offsets_map import CopiedTo
from isotherm.spark.jobs.repartition_runs import copied_to_text, goes_on, parse_copied_to


@pytest.mark.parametrize(
    ("lags_ms", "expected"),
    [
        ([100], False),
        ([101], True),
        ([5000, 2000, 100], False),
        # Each run is shorter than the one before it.
        ([5000, 2000, 900], True),
        # One run that is no shorter may be chance, two are not.
        ([5000, 900, 950], True),
        ([900, 950, 890], False),
        ([5000, 900, 950, 890], False),
        ([900, 950, 700], True),
    ],
)
def test_runs_go_on_while_the_lag_falls(lags_ms: list[int], expected: bool) -> None:
    assert goes_on(lags_ms, 100) is expected


def test_the_end_of_a_run_is_read_as_it_was_printed() -> None:
    ended = CopiedTo({0: 5, 11: 7}, {0: 12})
    assert parse_copied_to(copied_to_text(ended, "old", "new"), "old", "new") == ended
    # An end by hand has the old topic alone.
    assert parse_copied_to('{"old": {"0": 5}}', "old", "new") == CopiedTo({0: 5}, {})
    with pytest.raises(ConfigError, match="--from-offsets"):
        parse_copied_to("{", "old", "new")
