"""The output of `remote segments` and `remote events`, for a topic in memory."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.progress import Progress
from typer.testing import CliRunner

from isotherm.cli import remote, remote_events
from isotherm.cli.main import app
from isotherm.cli.output import print_stream
from isotherm.cli.remote_events import event_rows
from isotherm.remote.metadata.wire.events import DEFAULT_READ_MAX_BYTES
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

FLIGHTS = TopicIdPartition(uuid.UUID(int=1 << 90), "flights", 0)
PRICES = TopicIdPartition(uuid.UUID(int=2 << 90), "prices", 0)
# Custom metadata that neither layout wrote.
FOREIGN = b"\xffplug-in's own"
Run = Callable[..., Any]


def copy(
    topic: MemoryMetadataTopic,
    partition: TopicIdPartition,
    start: int,
    end: int,
    custom_metadata: bytes | None = None,
    *,
    number: int = 0,
    txn_index_empty: bool = False,
) -> None:
    """Append the two events of a finished copy."""
    segment_id = RemoteLogSegmentId(partition, uuid.UUID(int=(start + 1) << 70))
    started = RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_in_bytes=1,
        segment_leader_epochs={0: start},
        txn_index_empty=txn_index_empty,
    )
    finished = RemoteLogSegmentMetadataUpdate(
        segment_id=segment_id,
        event_timestamp_ms=0,
        custom_metadata=custom_metadata,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        broker_id=1,
    )
    for event in (started, finished):
        topic.append(number, None, encode_event(event), 0)


@pytest.fixture
def topic() -> MemoryMetadataTopic:
    return MemoryMetadataTopic(3)


@pytest.fixture
def run(topic: MemoryMetadataTopic, monkeypatch: pytest.MonkeyPatch) -> Run:
    @contextlib.contextmanager
    def opened(*_: object) -> Iterator[MemoryMetadataTopic]:
        yield topic

    for module in (remote, remote_events):
        monkeypatch.setattr(module, "open_metadata_topic", opened)
    monkeypatch.setattr(remote, "_local_rows", lambda *_: ([], []))
    return lambda *arguments: CliRunner().invoke(app, ["remote", *arguments])


def rows_of(done: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_hole_is_a_row_and_a_line(topic: MemoryMetadataTopic, run: Run) -> None:
    for start, end in ((0, 99), (100, 199), (300, 399)):
        copy(topic, FLIGHTS, start, end)
    done = run("segments", "flights", "--json")
    assert done.exit_code == 0
    listed = [(row["tier"], row["start_offset"], row["end_offset"]) for row in rows_of(done)]
    assert listed == [
        ("remote", 0, 99),
        ("remote", 100, 199),
        ("hole", 200, 299),
        ("remote", 300, 399),
    ]
    assert "a hole in the remote history" in done.stderr
    assert "topic=flights partition=0 offsets=200-299" in done.stderr


def test_foreign_custom_metadata_is_shown_as_it_is(topic: MemoryMetadataTopic, run: Run) -> None:
    copy(topic, FLIGHTS, 0, 99, FOREIGN)
    copy(topic, FLIGHTS, 100, 199)
    done = run("segments", "flights", "--json")
    assert done.exit_code == 0
    foreign, own = rows_of(done)
    assert foreign["custom_metadata"] == FOREIGN.hex()
    assert foreign["objects"]
    assert "custom_metadata" not in own
    assert FOREIGN.hex() in run("segments", "flights").stdout


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("layout", ["aiven", "local-tiered-storage"])
def test_objects_that_the_segment_has_are_listed(
    topic: MemoryMetadataTopic, run: Run, layout: str, *, is_empty: bool
) -> None:
    """A transaction index is an object of its own in one layout, and need not exist."""
    copy(topic, FLIGHTS, 0, 99, txn_index_empty=is_empty)
    done = run("segments", "flights", "--json", "--layout", layout)
    (row,) = rows_of(done)
    suffixes = {key.rpartition(".")[2] for key in row["objects"]}
    whole = {"log", "indexes", "rsm-manifest"}
    if layout == "local-tiered-storage":
        whole = {"log", "index", "timeindex", "snapshot", "leader_epoch_checkpoint"}
        whole |= set() if is_empty else {"txnindex"}
    assert suffixes == whole


def test_long_object_keys_stay_whole_outside_of_a_terminal(
    topic: MemoryMetadataTopic, run: Run
) -> None:
    copy(topic, FLIGHTS, 0, 99)
    prefix = "kafka/" + "x" * 300 + "/"
    done = run("segments", "flights", "--key-prefix", prefix)
    (line,) = [text for text in done.stdout.splitlines() if text.split()[:1] == ["0"]]
    assert prefix in line
    assert line.endswith("}")


def test_events_of_a_topic_up_to_a_limit(topic: MemoryMetadataTopic, run: Run) -> None:
    copy(topic, PRICES, 0, 9, number=0)
    copy(topic, FLIGHTS, 0, 99, number=1)
    copy(topic, FLIGHTS, 100, 199, number=2)
    rows = rows_of(run("events", "--topic", "flights", "--json"))
    assert [(row["metadata_partition"], row["offset"]) for row in rows] == [
        (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    assert rows_of(run("events", "--topic", "flights", "--limit", "3", "--json")) == rows[:3]


def test_events_begin_at_the_offsets_of_a_time(topic: MemoryMetadataTopic) -> None:
    copy(topic, FLIGHTS, 0, 99, number=0)
    copy(topic, FLIGHTS, 100, 199, number=1)
    rows = event_rows(topic, [], starts={0: 2, 1: 1})
    assert [(row["metadata_partition"], row["offset"]) for row in rows] == [(1, 1)]


@pytest.mark.slow
def test_progress_moves_inside_a_metadata_partition(
    topic: MemoryMetadataTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(topic, FLIGHTS, 0, 99)
    (record, *_) = topic.records()
    count = 3 * DEFAULT_READ_MAX_BYTES // len(record.value)
    for _ in range(count):
        topic.append(0, None, record.value, 0)
    bars = Progress(disable=True)
    monkeypatch.setattr(remote_events, "_progress", lambda: bars)
    done = {bars.tasks[0].completed for _ in event_rows(topic, [], topic="none", starts={})}
    assert done == set(), "no row is of that topic"
    assert bars.tasks[0].completed == bars.tasks[0].total == count + 2
    bars = Progress(disable=True)
    done = {bars.tasks[0].completed for _ in event_rows(topic, [])}
    assert len(done) >= 3


def test_damaged_record_is_reported_for_any_topic(topic: MemoryMetadataTopic, run: Run) -> None:
    topic.append(0, None, b"\x00nothing that an event begins with", 0)
    copy(topic, FLIGHTS, 0, 99)
    done = run("events", "--topic", "flights", "--json")
    assert done.exit_code == 3
    assert len(rows_of(done)) == 2
    assert "partition=0 offset=0" in done.stderr


def test_stream_prints_a_row_before_all_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    def rows() -> Iterator[dict[str, int]]:
        for number in range(1000):
            seen.append(len(capsys.readouterr().out.splitlines()))
            yield {"n": number}

    print_stream(["n"], rows(), as_json=False)
    # The first 200 rows determine the widths of the columns. Each later row is printed at once.
    assert seen[199:203] == [0, 201, 1, 1]
    capsys.readouterr()
    print_stream(["n"], rows(), as_json=True)
    assert seen[1000:1003] == [0, 1, 1]
