"""A consumer group from records that this broker would not write in this way or order."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from isotherm.broker.coordinators.groups import consumer_records, consumer_replay
from isotherm.broker.coordinators.groups.classic_protocol import Protocol
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup, ConsumerGroupSettings
from isotherm.broker.coordinators.groups.consumer_member import (
    ClassicSupport,
    ConsumerMember,
    MemberState,
)
from isotherm.broker.coordinators.groups.group_records import GroupRecord

TOPIC, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
MEMBER = ConsumerMember(
    member_id="a",
    instance_id="i",
    rack_id="r",
    client_id="c",
    client_host="/h",
    topic_names=frozenset({"t", "u"}),
    topic_regex="x.*",
    rebalance_timeout_ms=7,
    server_assignor="range",
    epoch=5,
    previous_epoch=4,
    state=MemberState.UNREVOKED_PARTITIONS,
    assigned=frozenset({(TOPIC, 0), (TOPIC, 2), (OTHER, 1)}),
    pending_revocation=frozenset({(TOPIC, 1)}),
    assignment_epochs={(TOPIC, 0): 2, (TOPIC, 1): 3, (TOPIC, 2): 5, (OTHER, 1): 4},
    classic=ClassicSupport(9, (Protocol("range", b"m"), Protocol("sticky", b"n"))),
)


@pytest.fixture
def group() -> ConsumerGroup:
    return ConsumerGroup("g", ConsumerGroupSettings(45_000, 5_000, 10))


def replay(group: ConsumerGroup, *records: GroupRecord) -> None:
    for record in records:
        consumer_replay.replay(group, record)


def written(**changes: Any) -> tuple[GroupRecord, GroupRecord]:
    """The records of the member's metadata and of its assignment."""
    member = replace(MEMBER, **changes)
    return (
        consumer_records.member_record("g", member),
        consumer_records.current_record("g", member),
    )


@pytest.mark.parametrize("is_first", [True, False])
def test_member_is_read_back_whichever_record_compaction_left_first(
    group: ConsumerGroup, is_first: bool
) -> None:
    records = written()
    replay(group, *(records if is_first else records[::-1]))
    assert group.members == {"a": MEMBER}


def test_partition_without_its_epoch_is_the_members_since_its_present_one(
    group: ConsumerGroup,
) -> None:
    """Brokers before 4.3 write no assignment epochs."""
    metadata, (key, value) = written()
    assert value is not None
    old = replace(
        value,
        assigned_partitions=tuple(
            replace(partition, assignment_epochs=None) for partition in value.assigned_partitions
        ),
    )
    replay(group, metadata, GroupRecord(key, old))
    member = group.members["a"]
    assert member.assigned == MEMBER.assigned
    assert member.assignment_epochs == {**dict.fromkeys(MEMBER.assigned, 5), (TOPIC, 1): 3}


@pytest.mark.parametrize(("epoch", "expected"), [(5, 5), (-2, 0)])
def test_partitions_with_too_few_epochs_are_the_members_since_its_present_one(
    group: ConsumerGroup, caplog: pytest.LogCaptureFixture, epoch: int, expected: int
) -> None:
    """Kafka: Utils.assignmentFromTopicPartitions. A static member that has left has epoch -2, which
    is no epoch of an assignment."""
    metadata, (key, value) = written(epoch=epoch)
    assert value is not None
    short = replace(
        value,
        assigned_partitions=tuple(
            replace(partition, assignment_epochs=partition.assignment_epochs[:1])
            for partition in value.assigned_partitions
        ),
    )
    replay(group, metadata, GroupRecord(key, short))
    epochs = group.members["a"].assignment_epochs
    assert epochs == {(TOPIC, 0): expected, (TOPIC, 2): expected, (OTHER, 1): 4, (TOPIC, 1): 3}
    (logged,) = caplog.messages
    assert f"group_id=g topic_id={TOPIC} epochs=1 partitions=2" in logged


def test_member_without_protocols_is_none_of_the_classic_protocol(group: ConsumerGroup) -> None:
    metadata, current = written(classic=ClassicSupport(9, ()))
    replay(group, metadata, current)
    assert group.members["a"].classic is None


def test_tombstones_take_everything_back(group: ConsumerGroup) -> None:
    targets = {"a": frozenset({(TOPIC, 3)}), "b": frozenset({(TOPIC, 4), (OTHER, 0)})}
    for member_id, target in targets.items():
        replay(group, *written(member_id=member_id))
        replay(group, consumer_records.target_record("g", member_id, target))
    replay(
        group,
        consumer_records.epoch_record("g", 6, -77),
        consumer_records.target_epoch_record("g", 5, 1000),
    )
    assert (group.group_epoch, group.metadata_hash, group.target_epoch) == (6, -77, 5)
    assert group.target == targets
    replay(group, *consumer_records.member_tombstones("g", "a"))
    assert list(group.members) == list(group.target) == ["b"]
    replay(group, *consumer_records.group_tombstones("g", ["a", "b"]))
    assert (group.members, group.target) == ({}, {})
    assert (group.group_epoch, group.metadata_hash, group.target_epoch) == (0, 0, 0)
