"""A broker is killed at every write of every transition of a segment, at feature level 1.

Writes are appends to the metadata topic and to the audit topic, and objects put and deleted. Each
story runs once to count its writes, and then twice for each write: killed before it, and killed
after it. Then a broker starts on the remains under the next epoch and does its work, and the
cleanup manager runs once. Cache, topic, audit topic and bucket must agree, and every record must be
readable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from isotherm.errors import RemoteResourceNotFoundError, RemoteStorageError
from isotherm.remote.metadata.topic.keyed_writes import key_of
from isotherm.remote.metadata.wire.keys import partition_key
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
)
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.tasks.copy import segment_data
from isotherm.remote.tasks.copy_plan import CandidateSegment
from isotherm.remote.tasks.partition_deletion import delete_remote_partition
from isotherm.types import uuid_to_text
from tests.support.faulty_store import Fault, Operation
from tests.support.tiered_partition import TieredPartition

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
OBJECTS_PER_SEGMENT = 3


class Killed(BaseException):
    """The process is dead. A BaseException, so that no handler catches it."""


class Writes:
    """Counts the writes of a partition's tier, and kills at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tiered: TieredPartition) -> None:
        self.count = 0
        self.is_dead = False
        self._kill_at: tuple[int, bool] | None = None
        self._is_armed = False
        for topic in (tiered.metadata_topic, tiered.audit_topic):
            monkeypatch.setattr(topic, "append_at", partial(self._write, topic.append_at))
        for name in ("put", "delete"):
            write = getattr(ObjectClient, name)
            monkeypatch.setattr(ObjectClient, name, self._method(write))

    @contextlib.contextmanager
    def killing(self, kill_at: tuple[int, bool] | None) -> Iterator[None]:
        """Kill at the n-th write within the block: before it, or after it if the second item is
        true.
        """
        self._kill_at, self._is_armed = kill_at, True
        try:
            yield
        finally:
            self._is_armed = False

    def _method(self, write: Callable[..., Any]) -> Callable[..., Any]:
        return lambda client, *args: self._write(partial(write, client), *args)

    def _write(self, write: Callable[..., Any], *args: Any) -> Any:
        if not self._is_armed:
            return write(*args)
        index = self.count
        self.count += 1
        self.is_dead |= self._kill_at == (index, False)
        if self.is_dead:  # the clean-up after an exception does not run either: the process is dead
            raise Killed
        answer = write(*args)
        self.is_dead |= self._kill_at == (index, True)
        if self.is_dead:
            raise Killed
        return answer


def copied(tiered: TieredPartition) -> None:
    tiered.copy_task.run()


def copied_with_a_failure(tiered: TieredPartition) -> None:
    """The first attempt fails and cannot be undone; the next one is under the same epoch."""
    tiered.store.fail_next(Operation.COPY, Fault.ERROR_AFTER)
    tiered.store.fail_next(Operation.DELETE, Fault.ERROR_BEFORE)
    with contextlib.suppress(RemoteStorageError):
        tiered.copy_task.run()
    tiered.copy_task.run()


def expired(tiered: TieredPartition) -> None:
    tiered.update_config(retention_bytes=500)
    tiered.expiration_task.run()


def cleaned_up(tiered: TieredPartition) -> None:
    """Remove copies that a later leader has repeated, and leftovers of the crash."""
    tiered.clean_up()


def deleted(tiered: TieredPartition) -> None:
    delete_remote_partition(tiered.tier, tiered.partition)


def nothing(_: TieredPartition) -> None: ...


def left_by_an_earlier_leader(tiered: TieredPartition) -> None:
    """Leave every segment twice, under two epochs; only the last copy is not finished."""
    tiered.copy_task.run()
    segments = tiered.segments()
    tiered.leader_epoch += 1
    for segment in segments:
        copy_again(tiered, segment, is_finished=segment is not segments[-1])
    tiered.clock.advance(1)


def copy_again(
    tiered: TieredPartition, segment: RemoteLogSegmentMetadata, *, is_finished: bool
) -> None:
    metadata = replace(
        segment,
        segment_id=tiered.tier.new_segment_id(tiered.partition),
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        broker_leader_epoch=tiered.leader_epoch,
    )
    (local,) = (each for each in tiered.log.segments() if each.base_offset == segment.start_offset)
    candidate = CandidateSegment(local, segment.end_offset_inclusive + 1)
    tiered.metadata.add_remote_log_segment_metadata(metadata).result()
    tiered.store.copy_log_segment_data(metadata, segment_data(tiered.log, candidate))
    if is_finished:
        tiered.tier.publish(tiered.tier.update_of(metadata, FINISHED, None))


STORIES: dict[str, tuple[Callable[[TieredPartition], None], Callable[[TieredPartition], None]]] = {
    "copy": (nothing, copied),
    "copy-retried-under-one-epoch": (nothing, copied_with_a_failure),
    "expiration": (copied, expired),
    "clean-up": (left_by_an_earlier_leader, cleaned_up),
    "partition-deletion": (copied, deleted),
}


class Theatre:
    """One partition with records in three closed segments, at feature level 1."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tiered = TieredPartition(directory, metadata_level=1)
        self.values = [b"record-%02d" % number for number in range(16)]
        for value in self.values:
            self.tiered.append(value)
        self.writes = Writes(monkeypatch, self.tiered)

    def play(self, story: str, kill_at: tuple[int, bool] | None) -> int:
        """Play the story until the kill, if any; return the number of writes of its second part."""
        prepare, act = STORIES[story]
        prepare(self.tiered)
        self.tiered.topic_exists = story != "partition-deletion"
        with contextlib.suppress(Killed), self.writes.killing(kill_at):
            act(self.tiered)
        return self.writes.count

    def start_again(self) -> None:
        """Start a broker on the remains, and run its periodic tasks."""
        self.tiered.store.heal()
        self.tiered.leader_epoch += 1
        self.tiered.restart()
        if self.tiered.topic_exists:
            self.tiered.copy_task.run()
            self.tiered.expiration_task.run()
        else:
            # A start continues the deletions that PendingDeletions has stored.
            deleted(self.tiered)
        self.tiered.clock.advance(1)
        self.tiered.clean_up()

    def check(self) -> None:
        tiered = self.tiered
        segments = self.segments()
        assert {segment.state for segment in segments} <= {FINISHED}
        names = tiered.object_names()
        assert len(names) == OBJECTS_PER_SEGMENT * len(segments)
        for segment in segments:
            assert any(uuid_to_text(segment.segment_id.id) in name for name in names)
        assert states_of_audit(tiered) == {each.segment_id: each.state for each in segments}
        tiered.metadata_topic.compact()
        keys = {key_of(segment).encode() for segment in segments}
        if not tiered.topic_exists:
            keys.add(partition_key(tiered.partition).encode())
        assert {record.key for record in tiered.metadata_topic.records()} == keys
        tiered.restart()
        assert self.segments() == segments
        if tiered.topic_exists:
            start = tiered.log.log_start_offset
            assert [*tiered.read_all().values()] == self.values[start:]

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        try:
            return self.tiered.segments()
        except RemoteResourceNotFoundError:  # the deletion of the partition is finished
            assert not self.tiered.topic_exists
            return []


def states_of_audit(tiered: TieredPartition) -> dict[RemoteLogSegmentId, RemoteLogSegmentState]:
    """Segment states folded from the audit topic.

    A start replaces an earlier start under the same key.
    """
    states: dict[RemoteLogSegmentId, RemoteLogSegmentState] = {}
    started: dict[bytes | None, RemoteLogSegmentId] = {}
    for record in tiered.audit_topic.records():
        match decode_event(record.value or b""):
            case RemoteLogSegmentMetadata() as event:
                states.pop(started.get(record.key, event.segment_id), None)
                started[record.key] = event.segment_id
                states[event.segment_id] = event.state
            case RemoteLogSegmentMetadataUpdate() as event:
                states[event.segment_id] = event.state
            case other:
                assert isinstance(other, RemotePartitionDeleteMetadata)
    deleted = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
    return {segment_id: state for segment_id, state in states.items() if state is not deleted}


@pytest.mark.parametrize("story", STORIES)
def test_whatever_write_is_the_last_everything_agrees_after_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: str
) -> None:
    with monkeypatch.context() as patched:
        theatre = Theatre(tmp_path / "uncut", patched)
        count = theatre.play(story, None)
        theatre.start_again()
        theatre.check()
    assert count >= 7
    for index in range(count):
        for is_after in (False, True):
            with monkeypatch.context() as patched:
                theatre = Theatre(tmp_path / f"{index}-{is_after}", patched)
                theatre.play(story, (index, is_after))
                assert theatre.writes.is_dead
                theatre.start_again()
                theatre.check()


def test_what_is_copied_stays_readable_from_the_bucket_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above can fail: it reads records that local retention has deleted."""
    theatre = Theatre(tmp_path / "p", monkeypatch)
    theatre.play("copy", None)
    theatre.tiered.delete_local_segments()
    assert theatre.tiered.log.local_log_start_offset > 0
    theatre.start_again()
    theatre.check()
