"""What fails and is tried again has a line when it begins, when it lasts, and when it is over."""

from __future__ import annotations

import logging

import pytest

from isotherm.errors import (
    CorruptMetadataError,
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    PeerDisconnectedError,
    RemoteStorageError,
    UnknownTopicOrPartitionError,
)
from isotherm.remote.outages import LASTING_S, REPEAT_S, Outage, Outages, log_failure
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition

logger = logging.getLogger(__name__)
PARTITION = TopicPartition("t", 0)
PASSING = [
    PeerDisconnectedError("away"),
    NotLeaderOrFollowerError("away"),
    FencedLeaderEpochError("away"),
    UnknownTopicOrPartitionError("away"),
    RemoteStorageError("away"),
    "away",
]


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def lines(logged: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    taken = [(record.levelname, record.getMessage()) for record in logged.records]
    logged.clear()
    return taken


def an_outage(clock: SimClock) -> Outage:
    return Outage(logger, clock, failing="read failed place=t", working="read works place=t")


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_what_a_restart_brings_has_one_line_however_often_it_is_tried(
    logged: pytest.LogCaptureFixture, error: Exception | str
) -> None:
    clock = SimClock()
    outage = an_outage(clock)
    for _ in range(int(LASTING_S)):
        outage.failed(error)
        clock.advance(999)
    assert lines(logged) == [("INFO", "read failed place=t: away")]
    outage.worked()
    outage.worked()
    assert lines(logged) == [("INFO", "read works place=t")]
    outage.failed(error)
    assert lines(logged) == [("INFO", "read failed place=t: away")]


def test_what_lasts_is_warned_of_with_its_present_reason_once_in_a_while(
    logged: pytest.LogCaptureFixture,
) -> None:
    clock = SimClock()
    outage = an_outage(clock)
    outage.failed("no leader")
    clock.advance(int(LASTING_S * 1000))
    for _ in range(10):
        outage.failed("no answer")
    assert lines(logged) == [
        ("INFO", "read failed place=t: no leader"),
        ("WARNING", "read failed place=t since_s=60: no answer"),
    ]
    clock.advance(int(REPEAT_S * 1000))
    outage.failed("no answer")
    assert lines(logged) == [("WARNING", "read failed place=t since_s=3660: no answer")]
    outage.worked()
    outage.failed("no leader")
    assert [level for level, _ in lines(logged)] == ["INFO", "INFO"]


def test_what_no_attempt_mends_is_an_error_at_once_and_again_when_it_changes(
    logged: pytest.LogCaptureFixture,
) -> None:
    outage = an_outage(SimClock())
    outage.failed("no leader")
    for _ in range(3):
        outage.failed(CorruptMetadataError("offset 7 is damaged"))
    outage.failed(ZeroDivisionError("a defect"))
    assert [record.exc_info is not None for record in logged.records] == [False, False, True]
    assert lines(logged) == [
        ("INFO", "read failed place=t: no leader"),
        ("ERROR", "read failed place=t: offset 7 is damaged"),
        ("ERROR", "read failed place=t: a defect"),
    ]
    outage.worked()
    outage.failed(CorruptMetadataError("offset 7 is damaged"))
    assert [level for level, _ in lines(logged)] == ["INFO", "ERROR"]


def test_places_have_outages_of_their_own(logged: pytest.LogCaptureFixture) -> None:
    outages = Outages(logger, SimClock(), failing="cannot be read at={}", working="is read at={}")
    for place in (PARTITION, TopicPartition("t", 1), PARTITION):
        outages.failed(place, "away")
    outages.worked(PARTITION)
    outages.worked(PARTITION)
    outages.forget(TopicPartition("t", 1))
    outages.worked(TopicPartition("t", 1))
    assert lines(logged) == [
        ("INFO", "cannot be read at=t-0: away"),
        ("INFO", "cannot be read at=t-1: away"),
        ("INFO", "is read at=t-0"),
    ]


def test_cause_is_told_in_one_line_unless_the_text_has_it(logged: pytest.LogCaptureFixture) -> None:
    for text in ("down", "down reason='known'"):
        error = RemoteStorageError(text)
        error.__cause__ = OSError("line 1\nline 2")
        log_failure(logger, error, "copy failed")
    assert lines(logged) == [
        ("INFO", "copy failed: down reason='OSError: line 1'"),
        ("INFO", "copy failed: down reason='known'"),
    ]
