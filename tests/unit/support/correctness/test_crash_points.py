"""Which durable writes a broker is set to die at, and their names."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.correctness.crash_points import (
    CrashPoint,
    CrashSchedule,
    Side,
    kills_line,
    seen_line,
    segment_life,
    table,
)
from tests.support.crashing_broker import file_name


def lines(*texts: str) -> list[bytes]:
    return [f"{text}\n".encode() for text in texts]


def test_life_of_a_segment_goes_to_the_audit_topic_at_level_1_alone() -> None:
    assert segment_life(1)[:7] == (
        "audit COPY_SEGMENT_STARTED",
        "metadata COPY_SEGMENT_STARTED",
        "put .log",
        "put .indexes",
        "put .rsm-manifest",
        "audit COPY_SEGMENT_FINISHED",
        "metadata COPY_SEGMENT_FINISHED",
    )
    not_audited = [each for each in segment_life(1) if not each.startswith("audit")]
    assert not_audited == list(segment_life(0))


def test_every_point_of_a_life_is_tried_before_any_is_tried_again() -> None:
    schedule = CrashSchedule(1, random.Random(1))
    count = 2 * len(schedule.life)
    chosen = [schedule.choose().point for _ in range(2 * count)]
    assert sorted(map(str, chosen[:count])) == sorted(map(str, chosen[count:]))
    assert len(set(chosen)) == count


def test_writes_that_a_broker_has_met_are_tried_too_and_hits_are_counted() -> None:
    schedule = CrashSchedule(1, random.Random(1))
    checkpoint = "checkpoint recovery-point-offset-checkpoint"
    point = CrashPoint(checkpoint, Side.AFTER)
    output = lines(seen_line(checkpoint), "2026-11-22 INFO serves", kills_line(point))
    assert schedule.learn(output) == point
    assert schedule.learn(lines(seen_line(checkpoint))) is None
    assert checkpoint in {schedule.choose().point.write for _ in range(200)}
    assert dict(schedule.hits) == {point: 1}
    assert table(schedule.hits, ["put .log"])[1].split() == [*checkpoint.split(), "0", "1"]


def test_only_the_writes_that_are_asked_for_are_tried() -> None:
    schedule = CrashSchedule(1, random.Random(1), ["put .log"])
    schedule.learn(lines(seen_line("put .indexes")))
    assert {schedule.choose().point.write for _ in range(50)} == {"put .log"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("log/events-0/00000000000000000012.log", "topic .log"),
        ("log/events-0/00000000000000000012.log.deleted", "topic .log.deleted"),
        ("log/__remote_log_metadata-2/00000000000000000000.log", "__remote_log_metadata .log"),
        ("log/events-0/leader-epoch-checkpoint.tmp", "topic leader-epoch-checkpoint"),
        ("log/events-0", "topic directory"),
        ("log/events-0.0c1f5e2d-delete", "topic directory.delete"),
        ("log/recovery-point-offset-checkpoint", "recovery-point-offset-checkpoint"),
        ("log/remote-log-index-cache/9338_Ih_AGFBESiiTkwMFIfbXNw.index", ".index"),
    ],
)
def test_files_of_a_kind_have_one_name(path: str, name: str) -> None:
    assert file_name(Path(path)) == name
