"""A partition under random histories of work, faults and restarts loses nothing.

The model is the list of appended values. After every step three things hold. One of the tiers has
every record between the log's start and end. A local segment is deleted only where a finished copy
holds its records. The metadata names every object in the bucket.

At the end, when no faults are injected any more, the bucket holds the finished segments and nothing
else. At feature level 1 the topic is compacted and cleaned up in between, and a restart sees only
the result; the audit topic must have the same segments.

A history follows from its seed. Steps have weights set by hand. Hypothesis would rarely draw a
history that fills a segment, fails to store its FINISHED and then deletes it locally.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from isotherm.errors import IsothermError, OffsetOutOfRangeError, RequestTimedOutError
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import uuid_to_text
from tests.support.faulty_store import Fault, Operation
from tests.support.memory_metadata_topic import MemoryMetadataTopic
from tests.support.tiered_partition import TieredPartition

SEEDS = range(12)
STEPS = 40
OBJECTS_PER_SEGMENT = 3
FAULTS = [None, None, Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.THROTTLED]


class History:
    """Random steps on one tiered partition, and the checks after each."""

    def __init__(self, directory: Path, seed: int, metadata_level: int = 0) -> None:
        self.rng = random.Random(seed)
        self.tiered = TieredPartition(directory, seed=seed, metadata_level=metadata_level)
        self.values: list[bytes] = []
        self.weights: dict[Callable[[], None], int] = {
            self.append: 6,
            self.copy: 6,
            self.delete_local: 4,
            self.expire: 3,
            self.restart: 2,
            self.change_retention: 1,
            self.delete_records: 1,
            self.lead_again: 1,
        }
        if metadata_level:
            self.weights |= {self.compact: 2, self.clean_up: 1}

    def step(self) -> None:
        (action,) = self.rng.choices(list(self.weights), list(self.weights.values()))
        action()

    def append(self) -> None:
        for _ in range(self.rng.randint(3, 12)):
            count = self.rng.randint(1, 3)
            values = [b"%06d" % (len(self.values) + number) for number in range(count)]
            assert self.tiered.append(*values) == len(self.values)
            self.values += values
        self.tiered.clock.advance(1000)

    def copy(self) -> None:
        self.run(self.tiered.copy_task.run)

    def expire(self) -> None:
        self.run(self.tiered.expiration_task.run)

    def run(self, task: Callable[[], object]) -> None:
        """Run a task. The store may fail it; an event may fail to be stored, or be stored with its
        reply lost."""
        for operation in (Operation.COPY, Operation.DELETE):
            if self.rng.random() < 0.3:
                self.tiered.store.fail_next(operation, *self.rng.choices(FAULTS, k=2))
        refused = self.rng.choice([None, None, None, *RemoteLogSegmentState])
        is_stored = self.rng.random() < 0.5
        topics = [self.tiered.metadata_topic]
        if self.tiered.metadata_level:
            topics.append(self.tiered.audit_topic)
        topic = self.rng.choice(topics)
        append = topic.append

        def fail(partition: int, key: bytes | None, value: bytes | None, now_ms: int) -> int:
            if value is None or refused is None or decode_event(value).state is not refused:
                return append(partition, key, value, now_ms)
            if is_stored:
                append(partition, key, value, now_ms)
            raise RequestTimedOutError("injected")

        topic.append = fail  # type: ignore[method-assign]
        with contextlib.suppress(IsothermError):
            task()
        topic.append = append  # type: ignore[method-assign]
        self.tiered.store.heal()
        self.tiered.metadata.poll()

    def compact(self) -> None:
        self.tiered.metadata_topic.compact()
        self.tiered.leader_epoch += 1  # as at every start of a broker
        self.tiered.restart()

    def clean_up(self) -> None:
        self.tiered.clock.advance(1)
        self.run(self.tiered.clean_up)

    def delete_local(self) -> None:
        self.tiered.delete_local_segments()
        self.tiered.log.delete_marked_files(self.tiered.clock.now_ms())

    def restart(self) -> None:
        self.tiered.restart()

    def change_retention(self) -> None:
        self.tiered.update_config(retention_bytes=self.rng.choice([-1, 2000, 5000]))

    def delete_records(self) -> None:
        log = self.tiered.log
        offset = min(log.log_start_offset + self.rng.randint(0, 9), log.log_end_offset)
        log.maybe_increment_log_start_offset(offset)

    def lead_again(self) -> None:
        self.tiered.leader_epoch += 1

    def check(self) -> None:
        self.check_records()
        self.check_local_deletion()
        self.check_objects()
        if self.tiered.metadata_level:
            self.check_audit()

    def check_audit(self) -> None:
        audited = states_of_audit(self.tiered.audit_topic)
        assert audited == {segment.segment_id: segment.state for segment in self.tiered.segments()}

    def check_records(self) -> None:
        log = self.tiered.log
        assert log.log_end_offset == len(self.values)
        found = self.tiered.read_all()
        for offset in range(log.log_start_offset, log.log_end_offset):
            assert found[offset] == self.values[offset]
        if log.log_start_offset > 0:
            with contextlib.suppress(OffsetOutOfRangeError):
                below = log.log_start_offset - 1
                assert self.tiered.read_values(below, 1)[0] == self.values[below]

    def check_local_deletion(self) -> None:
        log = self.tiered.log
        for offset in range(log.log_start_offset, log.local_log_start_offset):
            epoch = log.leader_epochs.epoch_for_offset(offset)
            assert epoch is not None
            held = self.tiered.metadata.remote_log_segment_metadata(
                self.tiered.partition, epoch, offset
            )
            assert held is not None

    def check_objects(self) -> None:
        ids = [uuid_to_text(segment.segment_id.id) for segment in self.tiered.segments()]
        for name in self.tiered.object_names():
            assert any(segment_id in name for segment_id in ids), name

    def check_nothing_is_left_behind(self) -> None:
        self.tiered.copy_task.run()
        self.tiered.expiration_task.run()
        segments = self.tiered.segments()
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        assert {segment.state for segment in segments} <= {finished}
        assert len(self.tiered.object_names()) == OBJECTS_PER_SEGMENT * len(segments)


def states_of_audit(
    topic: MemoryMetadataTopic,
) -> dict[RemoteLogSegmentId, RemoteLogSegmentState]:
    """The states that the audit topic's events give. A start replaces an earlier start under its
    key."""
    states: dict[RemoteLogSegmentId, RemoteLogSegmentState] = {}
    started: dict[bytes, RemoteLogSegmentId] = {}
    for record in topic.records():
        event = decode_event(record.value or b"")
        assert isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate)
        assert record.key is not None
        if isinstance(event, RemoteLogSegmentMetadata):
            states.pop(started.get(record.key, event.segment_id), None)
            started[record.key] = event.segment_id
        states[event.segment_id] = event.state
        if event.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            del states[event.segment_id]
    return states


@pytest.mark.parametrize("metadata_level", [0, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_history_of_faults_loses_nothing_and_leaks_nothing(
    tmp_path: Path, seed: int, metadata_level: int
) -> None:
    history = History(tmp_path / "p", seed, metadata_level)
    for _ in range(STEPS):
        history.step()
        history.check()
    history.check_nothing_is_left_behind()
    history.check()


def test_same_seed_gives_the_same_history(tmp_path: Path) -> None:
    traces = []
    for run in ("first", "second"):
        history = History(tmp_path / run, seed=1)
        for _ in range(STEPS):
            history.step()
        traces.append((history.tiered.store.trace, history.tiered.metadata_topic.records()))
    assert traces[0] == traces[1]
    assert any(call.fault is not None for call in traces[0][0])
