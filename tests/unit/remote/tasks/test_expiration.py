"""ExpirationTask on a real log and store."""

from __future__ import annotations

import pytest

from isotherm.errors import OffsetOutOfRangeError, RemoteStorageError
from isotherm.remote.indexes.index_cache import DIRECTORY_NAME
from isotherm.remote.indexes.index_cache_entry import index_files
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.remote.tasks.expiration_plan import RemoteDeletionReason
from isotherm.remote.tasks.partition_deletion import delete_remote_partition
from tests.support.faulty_store import Fault, Operation
from tests.support.tiered_partition import TieredPartition

METRICS = "kafka_server_brokertopicmetrics_"


@pytest.fixture
def copied(tiered: TieredPartition) -> TieredPartition:
    for number in range(22):
        tiered.append(b"record-%02d" % number)
        tiered.clock.advance(1000)
    tiered.copy_task.run()
    assert len(tiered.segments()) >= 4
    return tiered


def test_expiration_by_time_deletes_objects_and_raises_the_log_start(
    copied: TieredPartition,
) -> None:
    first, second, *_ = copied.segments()
    copied.update_config(retention_ms=copied.clock.now_ms() - second.max_timestamp_ms - 1)
    deletions = copied.expiration_task.run()
    assert [deletion.metadata.segment_id for deletion in deletions] == [
        first.segment_id,
        second.segment_id,
    ]
    assert {deletion.reason for deletion in deletions} == {RemoteDeletionReason.TIME}
    assert copied.log.log_start_offset == second.end_offset_inclusive + 1
    assert len(copied.object_names()) == 3 * len(copied.segments())
    assert copied.metrics.value(f"{METRICS}remotedeleterequests_total", topic="flights") == 2


def test_expiration_by_size_counts_both_tiers(copied: TieredPartition) -> None:
    copied.delete_local_segments()
    sizes = [segment.segment_size_in_bytes for segment in copied.segments()]
    local = copied.log.size_in_bytes
    copied.update_config(retention_bytes=sum(sizes) + local - sizes[0])
    assert len(copied.expiration_task.run()) == 1
    assert copied.expiration_task.run() == []


def test_expiration_on_a_fresh_leader_does_not_count_local_copies_twice(
    copied: TieredPartition,
) -> None:
    """KAFKA-20732: the highest remote offset is not known yet, and all segments are still local."""
    copied.update_config(retention_bytes=copied.log.size_in_bytes)
    copied.restart()
    assert copied.log.highest_offset_in_remote_storage == -1
    assert copied.expiration_task.run() == []


def test_expiration_raises_the_log_start_before_it_deletes(copied: TieredPartition) -> None:
    copied.update_config(retention_ms=0)
    copied.clock.advance(1000)
    last = copied.segments()[-1]
    copied.store.fail_next(Operation.DELETE, Fault.ERROR_BEFORE)
    with pytest.raises(RemoteStorageError):
        copied.expiration_task.run()
    assert copied.log.log_start_offset == last.end_offset_inclusive + 1
    assert copied.segments()[0].state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    assert copied.metrics.value(f"{METRICS}remotedeleteerrors_total", topic="flights") == 1
    copied.expiration_task.run()
    assert copied.segments() == []
    assert copied.object_names() == []


def test_expired_offsets_are_out_of_range_for_readers(copied: TieredPartition) -> None:
    copied.delete_local_segments()
    assert copied.read_values(0)
    copied.update_config(retention_ms=0)
    copied.clock.advance(1000)
    copied.expiration_task.run()
    with pytest.raises(OffsetOutOfRangeError):
        copied.read(0)


def test_raised_log_start_lets_the_segments_below_it_go(copied: TieredPartition) -> None:
    third = copied.segments()[2]
    copied.log.maybe_increment_log_start_offset(third.start_offset + 1)
    deletions = copied.expiration_task.run()
    assert [deletion.reason for deletion in deletions] == [RemoteDeletionReason.LOG_START] * 2
    assert copied.segments()[0].segment_id == third.segment_id


def test_cancelled_expiration_stops_between_two_deletions(copied: TieredPartition) -> None:
    copied.update_config(retention_ms=0)
    copied.clock.advance(1000)
    count = len(copied.segments())

    def cancel(partition: int, value: bytes | None) -> None:
        if decode_event(value or b"").state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            copied.expiration_task.cancel()

    copied.metadata_topic.before_append = cancel
    assert len(copied.expiration_task.run()) == 1
    assert len(copied.segments()) == count - 1


def test_expiration_reports_the_size_of_the_remote_log(copied: TieredPartition) -> None:
    copied.expiration_task.run()
    segments = copied.segments()
    size = sum(segment.segment_size_in_bytes for segment in segments)
    assert copied.metrics.value(f"{METRICS}remotelogsizebytes", topic="flights") == size
    assert copied.metrics.value(f"{METRICS}remotelogmetadatacount", topic="") == len(segments)
    assert copied.metrics.value(f"{METRICS}remotedeletelagbytes", topic="flights") == 0


def test_delete_remote_partition_marks_everything_before_it_deletes_anything(
    copied: TieredPartition,
) -> None:
    count = len(copied.segments())
    copied.store.fail_next(Operation.DELETE, None, Fault.THROTTLED)
    with pytest.raises(RemoteStorageError):
        delete_remote_partition(copied.tier, copied.partition)
    assert {segment.state for segment in copied.segments()} == {
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    }
    assert delete_remote_partition(copied.tier, copied.partition) == count
    assert copied.segments() == []
    assert copied.object_names() == []
    assert delete_remote_partition(copied.tier, copied.partition) == 0


def test_deletion_of_a_topic_that_an_earlier_process_finished_deletes_nothing(
    copied: TieredPartition,
) -> None:
    count = len(copied.segments())
    copied.topic_exists = False
    assert delete_remote_partition(copied.tier, copied.partition) == count
    assert delete_remote_partition(copied.tier, copied.partition) == 0


def cached_files(tiered: TieredPartition) -> list[str]:
    """The files of the index cache that it would find again, without those marked as deleted."""
    folder = tiered.log.directory.parent / DIRECTORY_NAME
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".deleted"))


def test_cached_indexes_go_with_their_segment(copied: TieredPartition) -> None:
    first, second, *_ = segments = copied.segments()
    for segment in segments:
        copied.index_cache.get(segment)
    copied.update_config(retention_ms=copied.clock.now_ms() - second.max_timestamp_ms - 1)
    assert len(copied.expiration_task.run()) == 2
    assert copied.index_cache.entry_count == len(segments) - 2
    stems = {index_files(each).stem for each in segments[2:]}
    assert {name.partition(".")[0] for name in cached_files(copied)} == stems
    assert index_files(first).stem not in stems


def test_cached_indexes_go_with_their_topic(copied: TieredPartition) -> None:
    for segment in copied.segments():
        copied.index_cache.get(segment)
    assert cached_files(copied)
    copied.topic_exists = False
    delete_remote_partition(copied.tier, copied.partition)
    assert copied.index_cache.entry_count == 0
    assert cached_files(copied) == []
