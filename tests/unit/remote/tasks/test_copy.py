"""CopyTask on a real log and a real store. The test injects the store's failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from isotherm.errors import CorruptRecordError, RemoteStorageError, RequestTimedOutError
from isotherm.log.log_segment import LogSegment
from isotherm.log.mending import MARKER_READ_SIZE
from isotherm.metrics.broker_topic_metrics import COPY_BLOCKED, TopicGauge
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.tasks.copy import CopyTask
from isotherm.remote.tasks.copy_block import CustomMetadataTooLargeError
from isotherm.remote.tasks.expiration import ExpirationTask
from isotherm.segment.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from isotherm.segment.transaction_index import TRANSACTION_INDEX_ENTRY_SIZE
from isotherm.types import UNKNOWN_OFFSET
from tests.support.faulty_store import Fault, FaultyStore, Operation
from tests.support.tiered_partition import BROKER_ID, TieredPartition

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@pytest.fixture
def filled(tiered: TieredPartition) -> TieredPartition:
    for number in range(12):
        tiered.append(b"record-%02d" % number)
    assert len(tiered.log.segments()) == 3
    return tiered


def states(tiered: TieredPartition) -> list[str]:
    events = [decode_event(record.value or b"") for record in tiered.metadata_topic.records()]
    return [event.state.name for event in events]


def fail_append_of(state: RemoteLogSegmentState) -> Callable[[int, bytes | None], None]:
    def check(partition: int, value: bytes | None) -> None:
        if decode_event(value or b"").state is state:
            raise RequestTimedOutError("injected")

    return check


def test_copy_takes_every_closed_segment_and_never_the_active_one(
    filled: TieredPartition,
) -> None:
    closed = filled.log.segments()[:-1]
    filled.copy_task.run()
    segments = filled.segments()
    assert [segment.start_offset for segment in segments] == [each.base_offset for each in closed]
    active_base = filled.log.segments()[-1].base_offset
    assert segments[-1].end_offset_inclusive == active_base - 1
    assert filled.log.highest_offset_in_remote_storage == active_base - 1
    assert {segment.state for segment in segments} == {FINISHED}
    assert [segment.segment_size_in_bytes for segment in segments] == [
        each.size_in_bytes for each in closed
    ]


@pytest.mark.parametrize("index", [0, 1])
def test_segment_without_bytes_is_copied_like_any_other(
    filled: TieredPartition, index: int
) -> None:
    """As in Kafka, whether a cleaner or a power loss has emptied it."""
    bases = [segment.base_offset for segment in filled.log.segments()]
    without_bytes(filled, index)
    filled.copy_task.run()
    assert [
        (segment.start_offset, segment.end_offset_inclusive + 1) for segment in filled.segments()
    ] == [*pairwise(bases)]
    assert [segment.segment_size_in_bytes == 0 for segment in filled.segments()] == [
        number == index for number in range(len(bases) - 1)
    ]
    assert filled.log.log_start_offset == 0
    assert filled.log.highest_offset_in_remote_storage == bases[-1] - 1


def without_bytes(filled: TieredPartition, index: int) -> LogSegment:
    """Empty the files of a segment, as a power loss may. Returns the segment."""
    segment = filled.log.segments()[index]
    filled.log.close()
    for path in (segment.log_path, segment.offset_index_path, segment.time_index_path):
        path.write_bytes(b"")
    filled.restart()
    return segment


def test_log_start_within_a_segment_without_bytes_stays(filled: TieredPartition) -> None:
    without_bytes(filled, 0)
    filled.log.maybe_increment_log_start_offset(1)
    filled.copy_task.run()
    assert filled.log.log_start_offset == 1
    assert filled.segments()[0].segment_leader_epochs == {0: 1}


def test_segment_without_bytes_takes_no_remote_segment_away(filled: TieredPartition) -> None:
    filled.copy_task.run()
    filled.delete_local_segments()
    for number in range(6):
        filled.append(b"more-%d" % number)
    first = without_bytes(filled, 0)
    assert filled.log.segments()[0].base_offset == first.base_offset > 0
    filled.copy_task.run()
    assert filled.log.log_start_offset == 0
    assert filled.segments()[0].start_offset == 0


def test_copy_publishes_started_then_copies_then_publishes_finished(
    filled: TieredPartition,
) -> None:
    seen: list[list[str]] = []
    inner = filled.store._inner.copy_log_segment_data

    def spy(metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        seen.append(states(filled))
        return inner(metadata, data)

    filled.store._inner.copy_log_segment_data = spy  # type: ignore[method-assign]
    filled.copy_task.run()
    assert seen == [
        ["COPY_SEGMENT_STARTED"],
        ["COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED"],
    ]


def test_copy_metadata_describes_the_segment(filled: TieredPartition) -> None:
    filled.copy_task.run()
    first = filled.segments()[0]
    assert first.broker_id == BROKER_ID
    assert first.max_timestamp_ms == filled.log.segments()[0].largest_timestamp_ms
    assert first.segment_leader_epochs == {0: 0}
    assert first.txn_index_empty
    assert first.custom_metadata is None
    assert len({segment.segment_id for segment in filled.segments()}) == 2


def test_copy_of_segment_with_aborted_transaction_has_a_transaction_index(
    tiered: TieredPartition,
) -> None:
    batch = build_batch(
        [(1, None, b"lost", ())],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    tiered.append_batch(batch)
    marker = build_end_transaction_marker(
        ControlRecordType.ABORT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=1,
    )
    tiered.append_batch(marker, origin=AppendOrigin.COORDINATOR)
    tiered.log.roll()
    tiered.append(b"next")
    tiered.copy_task.run()
    (segment,) = tiered.segments()
    assert not segment.txn_index_empty
    assert tiered.index_cache.get(segment).transaction_index[0].producer_id == 7


def test_copy_waits_for_the_last_stable_offset(tiered: TieredPartition) -> None:
    tiered.append_batch(
        build_batch(
            [(1, None, b"open", ())],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
    )
    for _ in range(12):
        tiered.append(b"behind an open transaction")
    tiered.copy_task.run()
    assert tiered.segments() == []


def test_copy_again_copies_only_what_is_new(filled: TieredPartition) -> None:
    filled.copy_task.run()
    filled.copy_task.run()
    assert len(filled.segments()) == 2
    for number in range(6):
        filled.append(b"record-%02d" % number)
    filled.copy_task.run()
    segments = filled.segments()
    assert len(segments) == len(filled.log.segments()) - 1
    assert all(
        after.start_offset == before.end_offset_inclusive + 1
        for before, after in pairwise(segments)
    )


def test_copy_after_restart_goes_on_where_it_was(filled: TieredPartition) -> None:
    filled.copy_task.run()
    before = filled.segments()
    filled.restart()
    assert filled.log.highest_offset_in_remote_storage == -1
    filled.copy_task.run()
    assert [segment.segment_id for segment in filled.segments()] == [
        segment.segment_id for segment in before
    ]
    assert filled.log.highest_offset_in_remote_storage == before[-1].end_offset_inclusive


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.FULL])
def test_copy_that_the_store_fails_leaves_no_object_and_is_done_again(
    filled: TieredPartition, fault: Fault
) -> None:
    filled.store.fail_next(Operation.COPY, fault)
    with pytest.raises(RemoteStorageError):
        filled.copy_task.run()
    assert filled.segments() == []
    assert filled.object_names() == []
    assert filled.log.highest_offset_in_remote_storage == -1
    filled.delete_local_segments()
    assert filled.log.local_log_start_offset == 0
    filled.copy_task.run()
    assert [segment.state for segment in filled.segments()] == [FINISHED, FINISHED]
    assert (
        filled.metrics.value(
            "kafka_server_brokertopicmetrics_remotecopyerrors_total", topic="flights"
        )
        == 1
    )


def test_copy_that_cannot_be_undone_stays_listed_for_the_expiration_task(
    filled: TieredPartition,
) -> None:
    filled.store.fail_next(Operation.COPY, Fault.ERROR_AFTER)
    filled.store.fail_next(Operation.DELETE, Fault.ERROR_BEFORE)
    with pytest.raises(RemoteStorageError):
        filled.copy_task.run()
    assert [segment.state for segment in filled.segments()] == [DELETE_STARTED]
    assert filled.object_names() != []
    filled.expiration_task.run()
    assert filled.segments() == []
    assert filled.object_names() == []


def test_copy_whose_started_cannot_be_stored_touches_no_object(filled: TieredPartition) -> None:
    filled.metadata_topic.before_append = fail_append_of(STARTED)
    with pytest.raises(RequestTimedOutError):
        filled.copy_task.run()
    assert filled.object_names() == []
    assert filled.store.trace == []


def test_copy_whose_finished_is_not_stored_publishes_it_again_and_copies_nothing_twice(
    filled: TieredPartition,
) -> None:
    filled.metadata_topic.before_append = fail_append_of(FINISHED)
    with pytest.raises(RequestTimedOutError):
        filled.copy_task.run()
    (unconfirmed,) = filled.segments()
    assert unconfirmed.state is STARTED
    assert filled.log.highest_offset_in_remote_storage == -1
    assert filled.expiration_task.run() == [], "it is not dangling: its copy is not over"
    filled.metadata_topic.before_append = None
    filled.copy_task.run()
    assert filled.segments()[0].segment_id == unconfirmed.segment_id
    assert [segment.state for segment in filled.segments()] == [FINISHED, FINISHED]
    copied = [call.segment_id for call in filled.store.trace if call.operation is Operation.COPY]
    assert len(copied) == len(set(copied)) == 2


def test_dangling_copy_of_an_earlier_process_is_deleted_by_expiration(
    filled: TieredPartition,
) -> None:
    filled.metadata_topic.before_append = fail_append_of(FINISHED)
    with pytest.raises(RequestTimedOutError):
        filled.copy_task.run()
    filled.metadata_topic.before_append = None
    filled.restart()
    dangling = filled.segments()[0].segment_id
    deletions = filled.expiration_task.run()
    assert [deletion.metadata.segment_id for deletion in deletions] == [dangling]
    assert filled.object_names() == []
    filled.copy_task.run()
    assert len(filled.segments()) == 2


def test_copy_does_not_take_for_safe_what_only_a_deleted_segment_held(
    filled: TieredPartition,
) -> None:
    """Differs from Kafka (KAFKA-12641), which keeps the highest offset of an epoch when its
    segments are deleted. After a restart local retention would then delete offsets that the remote
    tier has lost."""
    filled.copy_task.run()
    second = filled.segments()[1]
    filled.tier.delete_segment(second)
    filled.restart()
    filled.copy_task.run()
    assert [segment.start_offset for segment in filled.segments()] == [0, second.start_offset]
    assert filled.segments()[1].segment_id != second.segment_id


class WordyStore(FaultyStore):
    """A store that returns custom metadata of `size` bytes."""

    size = 129

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        super().copy_log_segment_data(metadata, data)
        return b"x" * self.size

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        super().delete_log_segment_data(replace(metadata, custom_metadata=None))


def wordy(tiered: TieredPartition) -> tuple[CopyTask, WordyStore]:
    store = WordyStore(tiered.store._inner, clock=tiered.clock, rng=tiered.tier.rng)
    return CopyTask(tiered.log, tiered.partition, replace(tiered.tier, storage=store)), store


def abort_marker(producer_id: int) -> bytearray:
    return build_end_transaction_marker(
        ControlRecordType.ABORT,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=1,
    )


def abort(tiered: TieredPartition, producer_id: int, records_within: int = 0) -> None:
    """Append an aborted transaction with `records_within` other records before its marker."""
    batch = build_batch(
        [(1, None, b"lost", ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    tiered.append_batch(batch)
    for number in range(records_within):
        tiered.append(b"%d" % number)
    tiered.append_batch(abort_marker(producer_id), origin=AppendOrigin.COORDINATOR)


def transactional(tiered: TieredPartition) -> None:
    """Append an aborted transaction and a record after it, each in closed segments of its own."""
    abort(tiered, 7, records_within=3)
    tiered.log.roll()
    tiered.append(b"next")
    tiered.log.roll()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def garble(path: Path) -> None:
    path.write_bytes(b"garbage")


@pytest.mark.parametrize("damage", [Path.unlink, cut, garble])
@pytest.mark.parametrize("suffixes", [".index", ".timeindex", ".snapshot", ".txnindex"])
def test_index_or_snapshot_that_the_disk_has_lost_is_made_again_from_the_segment(
    tmp_path: Path, suffixes: str, damage: Callable[[Path], None]
) -> None:
    tiered = TieredPartition(tmp_path / "p", internal_segment_bytes=4000)
    transactional(tiered)
    closed = tiered.log.segments()[:-1]
    paths = {
        kind: path
        for segment, ends in pairwise(tiered.log.segments())
        for kind, path in {
            (segment.base_offset, IndexType.OFFSET): segment.offset_index_path,
            (segment.base_offset, IndexType.TIMESTAMP): segment.time_index_path,
            (segment.base_offset, IndexType.TRANSACTION): segment.transaction_index_path,
            (segment.base_offset, IndexType.PRODUCER_SNAPSHOT): tiered.log.snapshots.path(
                ends.base_offset
            ),
        }.items()
    }
    sound = {kind: path.read_bytes() for kind, path in paths.items() if path.exists()}
    damaged = [path for path in paths.values() if path.suffix in suffixes.split() and path.exists()]
    assert len(damaged) == (1 if suffixes == ".txnindex" else len(closed))
    for path in damaged:
        damage(path)
    for segment in closed:
        segment.release_files()
    tiered.copy_task.run()
    copied = {each.start_offset: each for each in tiered.segments()}
    assert list(copied) == [each.base_offset for each in closed]
    assert [each.txn_index_empty for each in copied.values()] == [True, False, True]
    assert {kind: path.read_bytes() for kind, path in paths.items() if path.exists()} == sound
    for (start, kind), content in sound.items():
        assert tiered.store.fetch_index(copied[start], kind) == content, kind
    assert [each.name for each in tiered.log.directory.glob("*.cleaned")] == []


@pytest.mark.parametrize("batch_size", [1, MARKER_READ_SIZE])
def test_index_that_was_cut_between_two_entries_is_made_again_before_it_is_copied(
    tmp_path: Path, batch_size: int
) -> None:
    tiered = TieredPartition(
        tmp_path / "p", internal_segment_bytes=4 * MARKER_READ_SIZE, max_message_bytes=2**30
    )
    tiered.append(bytes(batch_size))
    for producer_id in (7, 8):
        abort(tiered, producer_id)
    tiered.log.roll()
    segment = tiered.log.segments()[0]
    sound = segment.transaction_index_path.read_bytes()
    segment.transaction_index_path.write_bytes(sound[:TRANSACTION_INDEX_ENTRY_SIZE])
    tiered.copy_task.run()
    [copied] = tiered.segments()
    assert tiered.store.fetch_index(copied, IndexType.TRANSACTION) == sound
    assert segment.transaction_index_path.read_bytes() == sound


def test_marker_of_a_transaction_without_records_is_no_reason_to_make_an_index_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiered = TieredPartition(tmp_path / "p", internal_segment_bytes=4000)
    tiered.append(b"record")
    tiered.append_batch(abort_marker(7), origin=AppendOrigin.COORDINATOR)
    tiered.log.roll()
    tiered.copy_task.run()
    [copied] = tiered.segments()
    assert copied.txn_index_empty
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_copy_of_a_segment_that_cannot_be_read_mends_nothing(filled: TieredPartition) -> None:
    first = filled.log.segments()[0]
    first.offset_index_path.unlink()
    content = bytearray(first.log_path.read_bytes())
    content[70] ^= 1
    first.log_path.write_bytes(content)
    with pytest.raises(CorruptRecordError):
        filled.copy_task.run()
    assert filled.segments() == []
    assert not first.offset_index_path.exists()


def test_custom_metadata_up_to_the_limit_is_kept_with_the_segment(filled: TieredPartition) -> None:
    task, store = wordy(filled)
    store.size = 128
    task.run()
    assert [segment.custom_metadata for segment in filled.segments()] == [b"x" * 128] * 2


def test_custom_metadata_over_the_limit_undoes_the_copy_and_stops_the_partition(
    filled: TieredPartition,
) -> None:
    task, store = wordy(filled)
    with pytest.raises(CustomMetadataTooLargeError, match=r"size=129 .*max\.bytes=128"):
        task.run()
    assert task.is_halted
    assert filled.segments() == []
    assert filled.object_names() == []
    deletions = [
        event
        for record in filled.metadata_topic.records()
        if (event := decode_event(record.value or b"")).state is DELETE_STARTED
    ]
    assert deletions[0].custom_metadata == b"x" * 129
    task.run()
    assert len(store.trace) == 2, "one copy and one deletion, and nothing after"


def test_partition_stopped_for_its_custom_metadata_shows_its_true_lag_and_that_it_is_stopped(
    filled: TieredPartition,
) -> None:
    prefix = "kafka_server_brokertopicmetrics_remotecopylag"

    def shown() -> list[float]:
        names = [prefix + "segments", prefix + "bytes", TopicGauge.COPY_HALTED_PARTITIONS]
        return [filled.metrics.value(name, topic="flights") for name in names]

    def true_lag() -> list[float]:
        closed = filled.log.segments()[:-1]
        return [len(closed), sum(each.size_in_bytes for each in closed)]

    task, _ = wordy(filled)
    assert shown()[2] == 0
    with pytest.raises(CustomMetadataTooLargeError):
        task.run()
    assert shown() == [*true_lag(), 1]
    for number in range(8):
        filled.append(b"more-%d" % number)
    task.run()
    assert true_lag()[0] > 2
    assert shown() == [*true_lag(), 1]
    filled.custom_metadata_size_max = 129
    task.run()
    assert shown() == [0, 0, 0]


def test_failed_copy_is_blocked_for_its_reason_until_one_succeeds(filled: TieredPartition) -> None:
    def blocked(reason: str) -> float:
        return filled.metrics.value(COPY_BLOCKED, topic="flights", reason=reason)

    filled.store.fail_next(Operation.COPY, Fault.ERROR_BEFORE)
    with pytest.raises(RemoteStorageError):
        filled.copy_task.run()
    assert blocked("another reason") == 1
    filled.copy_task.run()
    assert blocked("another reason") == 0
    task, _ = wordy(filled)
    for number in range(8):
        filled.append(b"more-%d" % number)
    with pytest.raises(CustomMetadataTooLargeError):
        task.run()
    assert blocked("custom metadata too large") == 1


def test_partition_stopped_for_its_custom_metadata_goes_on_when_the_limit_changes(
    filled: TieredPartition,
) -> None:
    task, _ = wordy(filled)
    with pytest.raises(CustomMetadataTooLargeError):
        task.run()
    filled.custom_metadata_size_max = 127
    with pytest.raises(CustomMetadataTooLargeError, match=r"max\.bytes=127"):
        task.run()
    filled.custom_metadata_size_max = 129
    task.run()
    assert [segment.custom_metadata for segment in filled.segments()] == [b"x" * 129] * 2


def test_new_leadership_copies_a_partition_that_was_stopped_for_its_custom_metadata(
    filled: TieredPartition,
) -> None:
    task, store = wordy(filled)
    with pytest.raises(CustomMetadataTooLargeError):
        task.run()
    store.size = 1
    task.run()
    assert filled.segments() == []
    led_again, store = wordy(filled)
    store.size = 1
    led_again.run()
    assert len(filled.segments()) == 2


def test_custom_metadata_over_the_limit_that_cannot_be_undone_is_deleted_later_with_it(
    filled: TieredPartition,
) -> None:
    """The copy task tries one deletion at once. The expiration task does the rest and passes the
    custom metadata too: the storage manager may need it to find the objects."""
    task, store = wordy(filled)
    store.fail_next(Operation.DELETE, Fault.ERROR_BEFORE)
    with pytest.raises(CustomMetadataTooLargeError):
        task.run()
    (left,) = filled.segments()
    assert (left.state, left.custom_metadata) == (DELETE_STARTED, b"x" * 129)
    ExpirationTask(filled.log, filled.partition, replace(filled.tier, storage=store)).run()
    assert filled.segments() == []
    assert filled.object_names() == []


def test_copy_waits_for_its_quota(filled: TieredPartition) -> None:
    """The simulated clock advances by itself during a wait."""
    filled.tier.copy_quota.update_limit(100)
    began_s = filled.clock.monotonic_s()
    filled.copy_task.run()
    first, second = filled.segments()
    waited_s = filled.clock.monotonic_s() - began_s
    assert waited_s == pytest.approx((first.segment_size_in_bytes - 100) / 100, abs=0.01)
    assert second.event_timestamp_ms - first.event_timestamp_ms == round(waited_s * 1000)


def test_copy_is_left_out_while_disabled_and_its_lag_is_zero(filled: TieredPartition) -> None:
    filled.update_config(remote_log_copy_disable=True)
    filled.copy_task.run()
    assert filled.segments() == []
    lag = "kafka_server_brokertopicmetrics_remotecopylagsegments"
    assert filled.metrics.value(lag, topic="flights") == 0
    filled.update_config(remote_log_copy_disable=False)
    filled.store.fail_next(Operation.COPY, None, Fault.ERROR_BEFORE)
    with pytest.raises(RemoteStorageError):
        filled.copy_task.run()
    assert filled.metrics.value(lag, topic="flights") == 1


def test_cancelled_copy_begins_no_segment(filled: TieredPartition) -> None:
    filled.copy_task.cancel()
    filled.copy_task.run()
    assert filled.segments() == []


def test_copied_bytes_and_requests_are_counted(filled: TieredPartition) -> None:
    filled.copy_task.run()
    size = sum(segment.segment_size_in_bytes for segment in filled.segments())
    prefix = "kafka_server_brokertopicmetrics_remotecopy"
    for topic in ("flights", ""):
        assert filled.metrics.value(f"{prefix}bytes_total", topic=topic) == size
        assert filled.metrics.value(f"{prefix}requests_total", topic=topic) == 2


def test_leader_epochs_go_with_the_segment_up_to_its_end(tiered: TieredPartition) -> None:
    for epoch in range(3):
        tiered.leader_epoch = epoch
        for number in range(6):
            tiered.append(b"record-%02d" % number)
    checkpoints: list[bytes] = []
    inner = tiered.store._inner.copy_log_segment_data

    def spy(metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        checkpoints.append(data.leader_epoch_checkpoint)
        return inner(metadata, data)

    tiered.store._inner.copy_log_segment_data = spy  # type: ignore[method-assign]
    tiered.copy_task.run()
    for segment, checkpoint in zip(tiered.segments(), checkpoints, strict=True):
        entries = read_leader_epoch_checkpoint(checkpoint)
        assert entries == [
            entry
            for entry in tiered.log.leader_epochs.entries
            if entry.start_offset <= segment.end_offset_inclusive
        ]
        assert max(segment.segment_leader_epochs) == entries[-1].epoch


def test_task_that_is_cancelled_before_it_begins_leaves_the_log_alone(
    filled: TieredPartition,
) -> None:
    """The task waits in its pool while the topic's tiering is turned off with deletion, and on
    again."""
    filled.copy_task.run()
    late = [CopyTask(filled.log, filled.partition, filled.tier)]
    late.append(ExpirationTask(filled.log, filled.partition, filled.tier))
    for task in late:
        task.cancel()
    filled.update_config(remote_storage_enable=False)
    filled.update_config(remote_storage_enable=True)
    for task in late:
        task.run()
    assert filled.log.highest_offset_in_remote_storage == UNKNOWN_OFFSET
