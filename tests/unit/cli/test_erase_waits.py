"""`erase --wait` at its time limit."""

from __future__ import annotations

import uuid

import pytest

from isotherm.cli import pipeline_erase_tail
from isotherm.errors import RequestTimedOutError
from isotherm.spark.jobs import erase_tail
from isotherm.spark.jobs.erase_tail import WaitingTail
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition

TAIL = WaitingTail(
    partition=TopicIdPartition(uuid.UUID(int=1), "users", 3),
    start=10,
    end=20,
    config={"segment.ms": "604800000"},
)


def test_tail_that_is_not_tiered_is_named_at_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []
    monkeypatch.setattr(erase_tail, "ready_tails", lambda *_: looks.append(1) or {})
    waiting = pipeline_erase_tail.Waiting(SimClock(auto_advance=True), 60)
    options: object = None
    assert pipeline_erase_tail._wait_for_tails(options, options, [TAIL], waiting) == {}  # type: ignore[arg-type]
    assert 3 < len(looks) <= 60
    pipeline_erase_tail.check_tails([], 60)
    with pytest.raises(RequestTimedOutError, match=r"offsets 10 to 19 \(segment.ms=604800000\)"):
        pipeline_erase_tail.check_tails([TAIL], 60)
