"""When a repartition that follows its topic makes another run, and what a run refuses."""

from __future__ import annotations

import pytest

from isotherm.errors import ConfigError, PolicyViolationError
from isotherm.spark.jobs.offsets_map import CopiedTo
from isotherm.spark.jobs.repartition import OldRange, check_groups_have_committed, old_ranges
from isotherm.spark.jobs.repartition_runs import copied_to_text, goes_on, parse_copied_to
from isotherm.spark.plan.offsets import OffsetBounds


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


@pytest.mark.parametrize(
    ("copied", "message"),
    [
        ({0: 5}, None),
        ({0: 9, 1: 4}, None),
        ({0: 10}, "partition=0 copied_to=10 end_offset=9"),
        ({0: 9, 2: 1}, "partition=2 copied_to=1 end_offset=None"),
        ({0: 2}, "records that an earlier run has not copied are deleted"),
    ],
)
def test_a_topic_goes_on_where_the_last_run_ended(
    copied: dict[int, int], message: str | None
) -> None:
    bounds = {0: OffsetBounds(3, 9), 1: OffsetBounds(0, 4)}
    if message is not None:
        with pytest.raises(PolicyViolationError, match=message):
            old_ranges(bounds, copied)
        return
    ranges = [OldRange(0, copied[0], 9), OldRange(1, copied.get(1, 0), 4)]
    assert old_ranges(bounds, copied) == ranges


def test_a_group_without_offsets_is_refused() -> None:
    check_groups_have_committed({"readers": {0: 0}}, "old")
    with pytest.raises(PolicyViolationError, match="group=redaers topic=old"):
        check_groups_have_committed({"readers": {0: 0}, "redaers": {}}, "old")
