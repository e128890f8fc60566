"""When committed offsets expire, and what a transaction does to them. The rules are Kafka's
(OffsetMetadataManager, ClassicGroup.offsetExpirationCondition)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from isotherm.broker.coordinators.groups.classic_checks import GroupState
from isotherm.broker.coordinators.groups.group_offsets import GroupOffsets
from isotherm.broker.coordinators.groups.group_records import GroupRecord, encode_value
from isotherm.broker.coordinators.groups.group_shard import AnyGroup, GroupShard
from isotherm.broker.coordinators.groups.offset_coordinator import OffsetCoordinator
from isotherm.broker.coordinators.groups.offset_reader import CommittedOffset
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata, offset_value
from isotherm.broker.coordinators.groups.stored_offset import StoredOffset, stored_offset
from isotherm.config.groups import GroupConfig
from isotherm.types import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
RETENTION_MS = 500
# Version 0 of ConsumerProtocolSubscription: topic t, without user data.
OF_T = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"


def stored(
    offset: int, *, at: int = 0, committed_ms: int = 1000, expires_ms: int | None = None
) -> StoredOffset:
    """The offset, with its record at offset `at` of the log."""
    value = encode_value(
        offset_value(
            OffsetAndMetadata(
                offset, commit_timestamp_ms=committed_ms, expire_timestamp_ms=expires_ms
            )
        )
    )
    assert value is not None
    return stored_offset(value, at)


def expired(
    offsets: GroupOffsets, now_ms: int, *in_use: str, empty_since_ms: int | None = None
) -> list[TopicPartition]:
    found = offsets.expired(
        now_ms,
        RETENTION_MS,
        empty_since_ms=empty_since_ms,
        is_in_use=lambda topic: topic in in_use,
    )
    return list(found)


@pytest.mark.parametrize(
    ("expires_ms", "empty_since_ms", "due_ms"),
    [
        (None, None, 1000 + RETENTION_MS),
        (None, 2000, 2000 + RETENTION_MS),
        (1200, None, 1200),
        (1200, 2000, 1200),
    ],
)
def test_offset_expires_once_its_retention_has_passed(
    expires_ms: int | None, empty_since_ms: int | None, due_ms: int
) -> None:
    offsets = GroupOffsets()
    offsets.commit(T0, stored(5, expires_ms=expires_ms))
    assert expired(offsets, due_ms - 1, empty_since_ms=empty_since_ms) == []
    assert expired(offsets, due_ms, empty_since_ms=empty_since_ms) == [T0]
    assert expired(offsets, due_ms, "t", empty_since_ms=empty_since_ms) == []


def test_offset_that_a_transaction_may_renew_does_not_expire() -> None:
    offsets = GroupOffsets()
    offsets.commit(T0, stored(5))
    offsets.commit(T1, stored(6))
    offsets.add_pending(7, T1, stored(9, at=2))
    assert expired(offsets, 10_000) == [T0]
    offsets.complete(7, committed=False)
    assert expired(offsets, 10_000) == [T0, T1]


@pytest.mark.parametrize(("at", "expected"), [(3, 50), (7, 5)])
def test_later_record_wins_when_a_transaction_commits(at: int, expected: int) -> None:
    offsets = GroupOffsets()
    offsets.add_pending(7, T0, stored(50, at=5))
    offsets.commit(T0, stored(5, at=at))
    offsets.complete(8, committed=True)
    assert offsets.is_unstable(T0)
    offsets.complete(7, committed=True)
    found = offsets.committed(T0)
    assert found is not None
    assert found.offset == expected
    assert not offsets.is_unstable(T0)


def test_aborted_offsets_leave_nothing() -> None:
    offsets = GroupOffsets()
    offsets.add_pending(7, T0, stored(50))
    assert (offsets.partitions(), offsets.committed_partitions()) == ([T0], [])
    assert not offsets.is_empty
    offsets.complete(7, committed=False)
    assert offsets.is_empty
    assert offsets.committed(T0) is None


def test_tombstone_drops_committed_and_pending_offsets() -> None:
    offsets = GroupOffsets()
    offsets.commit(T0, stored(5))
    offsets.add_pending(7, T0, stored(50))
    offsets.add_pending(7, T1, stored(51))
    offsets.add_pending(8, T0, stored(52))
    assert sorted(offsets.partitions()) == [T0, T1]
    offsets.forget(T0)
    assert offsets.partitions() == [T1]
    assert not offsets.is_unstable(T0)
    offsets.complete(7, committed=True)
    assert offsets.committed_partitions() == [T1]


class Shards:
    """The shards of a coordinator whose log takes every record. Time stands still unless the test
    moves it; the wall clock is 10 ms ahead."""

    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms

    def wall_offset_ms(self) -> int:
        return 10

    def write_offsets(self, shard: GroupShard, records: Sequence[GroupRecord]) -> None:
        for key, _ in records:
            shard.replay_offset(
                CommittedOffset(key.group, TopicPartition(key.topic, key.partition), None)
            )


class Expiry:
    """The offsets of group g, and its expiry with a retention of one minute."""

    def __init__(self, group: Any) -> None:
        self.shards: Any = Shards()
        self.shard = GroupShard(0)
        self.shard.groups["g"] = group
        self.forgotten: list[AnyGroup] = []
        config = GroupConfig(offsets_retention_minutes=1)
        self.coordinator = OffsetCoordinator(
            config, self.shards, lambda _, group: self.forgotten.append(group)
        )

    def commit(self, partition: TopicPartition, committed_ms: int) -> None:
        self.shard.replay_offset(
            CommittedOffset("g", partition, stored(5, committed_ms=committed_ms))
        )

    def left_at(self, wall_ms: int) -> list[TopicPartition]:
        self.shards.time_ms = wall_ms - 10
        self.coordinator.expire(self.shard)
        offsets = self.shard.offsets.get("g", GroupOffsets())
        return sorted(offsets.partitions())


def test_stable_group_loses_the_old_offsets_of_topics_that_it_does_not_read(driver) -> None:
    driver.join("a", protocols=(("range", OF_T),))
    driver.pass_time(3000)
    driver.sync("sync", "id-1", 1)
    expiry = Expiry(driver.group)
    expiry.commit(T0, 0)
    expiry.commit(U0, 1000)
    assert expiry.left_at(60_999) == [T0, U0]
    assert expiry.left_at(61_000) == [T0]
    assert expiry.forgotten == []


def test_group_that_rebalances_loses_no_offsets(driver) -> None:
    """A member that joins may be about to read the topic. Kafka waits until the group is stable."""
    driver.join("a", protocols=(("range", OF_T),))
    driver.pass_time(3000)
    expiry = Expiry(driver.group)
    expiry.commit(U0, 0)
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    assert expiry.left_at(10**9) == [U0]
    driver.sync("sync", "id-1", 1)
    driver.join("again", "id-1", protocols=(("range", OF_T), ("more", OF_T)))
    driver.join("b", protocols=(("range", OF_T),))
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert expiry.left_at(10**9) == [U0]


def test_group_of_unknown_subscriptions_loses_no_offsets(driver) -> None:
    driver.stable(None)
    expiry = Expiry(driver.group)
    expiry.commit(U0, 0)
    assert expiry.left_at(10**9) == [U0]


def test_retention_of_an_empty_group_begins_when_its_last_member_left(driver) -> None:
    (member_id,) = driver.stable(None)
    driver.leave((member_id, None))
    expiry = Expiry(driver.group)
    expiry.commit(T0, 0)
    empty_since_ms = driver.now_ms + 10
    assert expiry.left_at(empty_since_ms + 59_999) == [T0]
    assert expiry.forgotten == []
    assert expiry.left_at(empty_since_ms + 60_000) == []
    assert expiry.forgotten == [driver.group]


def test_retention_of_a_group_without_members_ever_begins_with_the_commit(driver) -> None:
    expiry = Expiry(driver.group)
    expiry.commit(T0, 1000)
    expiry.commit(T1, 2000)
    assert expiry.left_at(61_000) == [T1]
    assert expiry.forgotten == []
    assert expiry.left_at(62_000) == []
    assert expiry.forgotten == [driver.group]


def test_empty_group_stays_while_a_transaction_has_offsets_of_it(driver) -> None:
    expiry = Expiry(driver.group)
    expiry.shard.replay_offset(CommittedOffset("g", T0, stored(5), producer_id=7))
    assert expiry.left_at(10**9) == [T0]
    assert expiry.forgotten == []
    expiry.shard.complete_transaction(7, committed=False)
    assert expiry.left_at(10**9) == []
    assert expiry.forgotten == [driver.group]
