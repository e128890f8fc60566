"""Shards loaded from compacted logs: gaps between offsets, batches without records, markers without
their transactions.

Some logs are laid out by hand, others are compacted by the cleaner itself.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.coordinators.coordinator_topic import CoordinatorTopic
from isotherm.broker.coordinators.groups import share_group_records
from isotherm.broker.coordinators.groups.classic_group import ClassicGroupSettings
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroupSettings
from isotherm.broker.coordinators.groups.group_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    encode_key,
    encode_value,
    encoded_records,
)
from isotherm.broker.coordinators.groups.group_shard import GroupShard, ShardFold
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata, offset_key, offset_value
from isotherm.broker.coordinators.groups.offsets_topic import OffsetsTopic
from isotherm.broker.coordinators.groups.share_group import ShareGroupSettings
from isotherm.broker.coordinators.groups.share_member import ShareMember, TopicPartitions
from isotherm.broker.metadata.internal_topics import InternalTopic
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import CorruptRecordError
from isotherm.log.cleaner.choice import LogToClean
from isotherm.log.cleaner.cleaner import Cleaner
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.filtered_batch import filtered_batch
from tests.support.local_log import open_local_log

NOW_MS = 1_700_000_000_000
COMPACTED = TopicConfig(cleanup_policy=("compact",), delete_retention_ms=1000)


def commit_of(partition: int, offset: int, group: str = "g") -> tuple[int, bytes, Any, Any]:
    committed = OffsetAndMetadata(offset, commit_timestamp_ms=NOW_MS)
    key = encode_key(offset_key(group, TopicPartition("t", partition)))
    return (NOW_MS, key, encode_value(offset_value(committed)), ())


def tombstone_of(partition: int, group: str = "g") -> tuple[int, bytes, Any, Any]:
    return (NOW_MS, encode_key(offset_key(group, TopicPartition("t", partition))), None, ())


def group_of(group: str, generation: int) -> tuple[int, bytes, Any, Any]:
    value = GroupMetadataValue(protocol_type="consumer", generation=generation)
    return (NOW_MS, encode_key(GroupMetadataKey(group=group)), encode_value(value), ())


def modern_group_of(group: str, epoch: int | None) -> tuple[int, bytes, Any, Any]:
    value = None if epoch is None else encode_value(ConsumerGroupMetadataValue(epoch=epoch))
    return (NOW_MS, encode_key(ConsumerGroupMetadataKey(group_id=group)), value, ())


def batch(records: Sequence[Any], base_offset: int, producer_id: int = -1) -> bytearray:
    of_transaction = producer_id >= 0
    return build_batch(
        records,
        base_offset=base_offset,
        partition_leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=0 if of_transaction else -1,
        is_transactional=of_transaction,
    )


def marker(base_offset: int, producer_id: int, *, commit: bool = True) -> bytearray:
    return build_end_transaction_marker(
        ControlRecordType.COMMIT if commit else ControlRecordType.ABORT,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=NOW_MS,
        base_offset=base_offset,
        partition_leader_epoch=0,
    )


def emptied(full: bytearray) -> bytes:
    """The batch after compaction removed all its records but had to keep the batch."""
    return filtered_batch(full, frozenset())


def write_log(directory: Path, **segments: Sequence[bytes | bytearray]) -> PartitionLog:
    """A log of segments by base offset (`at_5`). The last one is the active segment."""
    directory.mkdir(parents=True)
    for name, batches in segments.items():
        path = directory / f"{int(name.removeprefix('at_')):020}.log"
        path.write_bytes(b"".join(batches))
    return open_log(directory)


def open_log(directory: Path, clock: SimClock | None = None) -> PartitionLog:
    log = open_local_log(
        directory,
        config=COMPACTED,
        topic_partition=TopicPartition("__consumer_offsets", 0),
        clock=clock or SimClock(),
    )
    log.update_high_watermark(log.log_end_offset)
    return log


def load(log: PartitionLog) -> GroupShard:
    partitions: Any = SimpleNamespace(find_partition=lambda *_: SimpleNamespace(log=log))
    described = InternalTopic(name="__consumer_offsets", partitions=1, replication_factor=1)
    nothing: Any = None
    topic = OffsetsTopic(CoordinatorTopic(nothing, partitions, nothing, described), SimClock())
    settings = ConsumerGroupSettings(45_000, 5_000, 10)
    share_settings = ShareGroupSettings(45_000, 5_000, 1_000, 30_000, 10)
    fold = ShardFold(0, ClassicGroupSettings(0, 10), lambda _: settings, lambda _: share_settings)
    for loaded in topic.read(0):
        fold.add(loaded)
    return fold.finish(now_ms=0, wall_offset_ms=0)


def offsets_of(shard: GroupShard) -> dict[tuple[str, int], int]:
    return {
        (group_id, partition.partition): committed.offset
        for group_id, offsets in shard.offsets.items()
        for partition in offsets.committed_partitions()
        if (committed := offsets.committed(partition)) is not None
    }


STREAMS_GROUP = 17


def streams_group_of(group: str, value: bytes | None) -> tuple[Any, ...]:
    """A record as in Kafka's StreamsGroupMetadataKey.json."""
    key = struct.pack(">hh", STREAMS_GROUP, len(group)) + group.encode()
    return (NOW_MS, key, value, ())


def encoded(records: Sequence[GroupRecord]) -> list[tuple[Any, ...]]:
    return [(NOW_MS, key, value, ()) for key, value in encoded_records(records)]


def share_group_of(group: str) -> list[GroupRecord]:
    """A group with a member."""
    member = ShareMember(member_id="a", topic_names=frozenset({"t"}), epoch=3, previous_epoch=2)
    topics = {uuid.UUID(int=1): TopicPartitions("t", frozenset({0}))}
    return [
        share_group_records.member_record(group, member),
        share_group_records.epoch_record(group, 4, 7),
        share_group_records.target_record(group, "a", frozenset({(uuid.UUID(int=1), 0)})),
        share_group_records.target_epoch_record(group, 3, NOW_MS),
        share_group_records.current_record(group, member),
        share_group_records.state_record(group, {}, topics, {}),
    ]


def test_groups_of_types_that_are_not_served_keep_their_ids_and_offsets(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "log" / "__consumer_offsets-0",
        at_0=[
            batch([streams_group_of("deleted", b"\0\0\0\0\0\1\0")], 0),
            batch([streams_group_of("streams", b"\0\0\0\0\0\1\0")], 1),
            batch([commit_of(0, 10, "streams")], 2),
            batch([streams_group_of("deleted", None)], 3),
        ],
    )
    shard = load(log)
    assert shard.unserved == {"streams"}
    assert shard.is_taken("streams")
    assert offsets_of(shard) == {("streams", 0): 10}
    # If it were loaded as a classic group, its offsets would expire.
    assert not shard.all_groups()


def test_share_groups_are_loaded_and_deleted_ones_leave_no_rest(tmp_path: Path) -> None:
    deleted = [
        *share_group_records.member_tombstones("deleted", "a"),
        *share_group_records.group_tombstones("deleted"),
    ]
    log = write_log(
        tmp_path / "log" / "__consumer_offsets-0",
        at_0=[
            batch(encoded([*share_group_of("shared"), *share_group_of("deleted")]), 0),
            batch(encoded(deleted), 12),
            # Compaction has removed what these tombstones were for.
            batch(encoded(share_group_records.member_tombstones("gone", "a")), 18),
            batch([commit_of(0, 10, "shared")], 21),
        ],
    )
    shard = load(log)
    assert shard.share_groups.keys() == {"shared"}
    group = shard.share_groups["shared"]
    assert (group.group_epoch, group.metadata_hash, group.target_epoch) == (4, 7, 3)
    assert (group.members["a"].epoch, group.shown_state) == (3, "Stable")
    assert group.states is not None
    assert group.states.initialized.keys() == {uuid.UUID(int=1)}
    assert group.session_deadlines == {"a": 45_000}
    # No group that commits offsets gets its id.
    assert not shard.all_groups()
    assert shard.is_taken("shared")
    assert not shard.is_taken("deleted")
    log.close()


def test_log_with_holes_and_empty_batches_is_read_to_its_end(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "log" / "__consumer_offsets-0",
        at_0=[
            batch([commit_of(0, 10)], 3),
            emptied(batch([commit_of(1, 1)], 7, producer_id=5)),
            emptied(marker(8, 5)),
            batch([commit_of(1, 11), commit_of(2, 12)], 9, producer_id=6),
            marker(14, 6),
        ],
        # Offsets 15 to 29 are a gap.
        at_20=[batch([group_of("g", 4)], 30), emptied(marker(31, 7, commit=False))],
        at_40=[emptied(batch([commit_of(3, 1)], 44, producer_id=8))],
        at_50=[batch([tombstone_of(0)], 52), marker(53, 8, commit=False)],
        at_60=[],
    )
    shard = load(log)
    assert offsets_of(shard) == {("g", 1): 11, ("g", 2): 12}
    assert shard.groups["g"].generation_id == 4
    assert not any(
        shard.offsets["g"].is_unstable(TopicPartition("t", number)) for number in range(4)
    )
    log.close()


def test_records_below_the_log_start_are_not_loaded(tmp_path: Path) -> None:
    """The log may start inside a batch."""
    records = [commit_of(number, 10 + number) for number in range(3)]
    log = write_log(tmp_path / "log" / "__consumer_offsets-0", at_0=[batch(records, 0)])
    log.maybe_increment_log_start_offset(1)
    shard = load(log)
    assert offsets_of(shard) == {("g", 1): 11, ("g", 2): 12}
    (group,) = shard.all_groups()
    assert group.shown_state == "Empty", "the group of a consumer with a manual assignment"
    log.close()


@pytest.mark.parametrize("at", [0, 1], ids=["offset", "marker"])
def test_damaged_batch_is_not_believed(tmp_path: Path, at: int) -> None:
    """Its records can be read: only the CRC shows the damage."""
    batches = [batch([commit_of(0, 5)], 0, producer_id=7), marker(1, 7)]
    log = write_log(tmp_path / "log" / "__consumer_offsets-0", at_0=batches)
    batches[at][17] ^= 1  # in the CRC itself
    # After the start, whose recovery would drop the batch.
    log.segments()[0].log_path.write_bytes(b"".join(batches))
    with pytest.raises(CorruptRecordError, match=f"crc .* base_offset={at} "):
        load(log)
    log.close()


def test_log_of_which_nothing_is_left_is_an_empty_shard(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "log" / "__consumer_offsets-0",
        at_0=[emptied(batch([commit_of(0, 1)], 20))],
        at_100=[],
    )
    shard = load(log)
    assert (shard.groups, shard.consumer_groups, shard.offsets) == ({}, {}, {})
    log.close()


def test_marker_of_a_transaction_that_was_compacted_away_settles_nothing(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "log" / "__consumer_offsets-0",
        at_0=[marker(4, 5), batch([commit_of(0, 7)], 6, producer_id=5), marker(9, 6)],
        at_10=[batch([commit_of(1, 8)], 12)],
    )
    shard = load(log)
    assert offsets_of(shard) == {("g", 1): 8}
    assert shard.offsets["g"].is_unstable(TopicPartition("t", 0))
    shard.complete_transaction(5, committed=True)
    assert offsets_of(shard) == {("g", 0): 7, ("g", 1): 8}
    log.close()


@pytest.mark.parametrize("seed", range(3))
def test_cleaned_log_is_the_same_shard(tmp_path: Path, seed: int) -> None:
    """The log has commits in and outside transactions, groups and tombstones. It is cleaned twice,
    and once more after the delete horizon, and loaded in between."""
    rng = random.Random(seed)
    clock = SimClock(NOW_MS)
    log = open_log(tmp_path / "log" / "__consumer_offsets-0", clock)
    cleaner = Cleaner(CleanerConfig(), clock, random.Random(0))
    cleaned_to = 0
    for _ in range(4):
        for _ in range(60):
            append_something(log, rng)
        log.roll()
        log.update_high_watermark(log.log_end_offset)
        expected = offsets_of(load(log)), generations(load(log))
        assert expected[0]
        sizes = [segment.size_in_bytes for segment in log.segments()]
        part = LogToClean(cleaned_to, log.segments()[-1].base_offset, 0, sum(sizes), 0)
        cleaned_to = cleaner.clean(
            log, part, throttle=lambda _: None, check_abort=lambda: None
        ).end_offset
        assert sum(segment.size_in_bytes for segment in log.segments()) < sum(sizes)
        assert (offsets_of(load(log)), generations(load(log))) == expected
        clock.advance(COMPACTED.delete_retention_ms + 1)
    log.close()
    again = open_log(tmp_path / "log" / "__consumer_offsets-0", clock)
    assert (offsets_of(load(again)), generations(load(again))) == expected
    again.close()


def generations(shard: GroupShard) -> dict[str, int]:
    return {name: group.generation_id for name, group in shard.groups.items()} | {
        name: group.group_epoch for name, group in shard.consumer_groups.items()
    }


def append_something(log: PartitionLog, rng: random.Random) -> None:
    group, modern = f"g{rng.randrange(3)}", f"m{rng.randrange(3)}"
    producer_id = rng.randrange(3)
    changes: list[tuple[bytearray, ...]] = [
        (batch([commit_of(rng.randrange(4), rng.randrange(99), group)], 0),),
        (batch([tombstone_of(rng.randrange(4), group)], 0),),
        (batch([group_of(group, rng.randrange(1, 99))], 0),),
        (batch([modern_group_of(modern, rng.choice([None, rng.randrange(1, 99)]))], 0),),
        (
            batch([commit_of(rng.randrange(4), rng.randrange(99), group)], 0, producer_id),
            marker(0, producer_id, commit=rng.random() < 0.6),
        ),
    ]
    for appended in rng.choice(changes):
        log.append_as_leader(appended, 0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
