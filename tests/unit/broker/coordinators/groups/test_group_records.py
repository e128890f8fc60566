"""Records of `__consumer_offsets`: which are refused, which are skipped, and one layout written by
Kafka."""

from __future__ import annotations

import pytest

from isotherm.broker.coordinators.groups.classic_checks import GroupState
from isotherm.broker.coordinators.groups.classic_group import ClassicGroupSettings
from isotherm.broker.coordinators.groups.group_records import (
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    decode_record,
    encode_key,
    encode_value,
)
from isotherm.broker.coordinators.groups.group_snapshot import restore_group
from isotherm.broker.coordinators.groups.offsets import offset_of_value
from isotherm.errors import CorruptMetadataError

# Written by Apache Kafka 4.3.1 for a consumer of librdkafka with group.protocol=consumer.
MEMBER_OF_KAFKA = bytes.fromhex(
    "0000" "00" "00" "096120636c69656e74" "0b2f3132372e302e302e31" "020867726f75706564"
    "01" "000493e0" "00" "01000100"
)  # fmt: skip


def test_member_of_the_consumer_protocol_is_as_kafka_wrote_it() -> None:
    key = bytes.fromhex("0005") + b"\x00\x01g\x00\x01m"
    record = decode_record(key, MEMBER_OF_KAFKA)
    assert record is not None
    value = record.value
    assert isinstance(value, ConsumerGroupMemberMetadataValue)
    assert (value.client_id, value.client_host) == ("a client", "/127.0.0.1")
    assert value.subscribed_topic_names == ("grouped",)
    assert (value.subscribed_topic_regex, value.rebalance_timeout_ms) == ("", 300_000)
    assert value.classic_member_metadata is None
    assert encode_value(value) == MEMBER_OF_KAFKA


def test_record_of_a_type_that_is_not_kept_is_passed_over() -> None:
    assert decode_record(b"\x00\x0b\x00\x01g", b"\x00\x00\x00") is None


def test_tombstone_has_no_value() -> None:
    key = encode_key(GroupMetadataKey(group="g"))
    record = decode_record(key, None)
    assert record == (GroupMetadataKey(group="g"), None)
    assert encode_value(None) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\x00\x02\x00\x05g", b""),
        (b"\x00\x02\x00\x01g", b"\x00"),
        (b"\x00\x02\x00\x01g", b"\x00\x09"),
        (b"\x00\x02\x00\x01g", b"\x00\x03\x00"),
    ],
)
def test_damaged_record_is_corrupt_metadata(key, value) -> None:
    with pytest.raises(CorruptMetadataError):
        decode_record(key, value)


OFFSET_KEY = b"\x00\x01g\x00\x01t" + (3).to_bytes(4, "big")


@pytest.mark.parametrize("record_type", ["0000", "0001"])
@pytest.mark.parametrize(
    ("value", "leader_epoch", "expires"),
    [
        ("0000 0000000000000005 0001 6d 0000000000000007", -1, None),
        ("0001 0000000000000005 0001 6d 0000000000000007 0000000000000009", -1, 9),
        ("0001 0000000000000005 0001 6d 0000000000000007 ffffffffffffffff", -1, None),
        ("0002 0000000000000005 0001 6d 0000000000000007", -1, None),
        ("0003 0000000000000005 00000002 0001 6d 0000000000000007", 2, None),
        ("0004 0000000000000005 00000002 02 6d 0000000000000007 00", 2, None),
    ],
)
def test_offset_is_read_in_every_version(record_type, value, leader_epoch, expires) -> None:
    record = decode_record(bytes.fromhex(record_type) + OFFSET_KEY, bytes.fromhex(value))
    assert record is not None
    assert record.key == OffsetCommitKey(group="g", topic="t", partition=3)
    found = offset_of_value(record.value)
    assert (found.offset, found.metadata, found.commit_timestamp_ms) == (5, "m", 7)
    assert (found.leader_epoch, found.expire_timestamp_ms, found.topic_id) == (
        leader_epoch,
        expires,
        None,
    )


MEMBER = "0001 6d"  # its id
CLIENT = "0001 63 0001 68"  # client id and host
REST = "00002710 00000001 73 00000002 6161"  # session timeout, subscription, assignment


@pytest.mark.parametrize(
    ("value", "instance_id", "rebalance_ms", "since_ms"),
    [
        (f"0000 0001 63 00000004 0001 72 0001 6d 00000001 {MEMBER} {CLIENT} {REST}",
         None, 10_000, 500),
        (f"0001 0001 63 00000004 0001 72 0001 6d 00000001 {MEMBER} {CLIENT} 00004e20 {REST}",
         None, 20_000, 500),
        (("0002 0001 63 00000004 0001 72 0001 6d 0000000000000bb8 00000001"
         f" {MEMBER} {CLIENT} 00004e20 {REST}"),
         None, 20_000, 2_000),
        (("0003 0001 63 00000004 0001 72 0001 6d 0000000000000bb8 00000001"
         f" {MEMBER} 0001 69 {CLIENT} 00004e20 {REST}"),
         "i", 20_000, 2_000),
        (("0004 02 63 00000004 02 72 02 6d 0000000000000bb8 02"
         " 02 6d 02 69 02 63 02 68 00004e20 00002710 02 73 03 6161 00 00"),
         "i", 20_000, 2_000),
    ],
)  # fmt: skip
def test_group_is_read_in_every_version(value, instance_id, rebalance_ms, since_ms) -> None:
    record = decode_record(bytes.fromhex("0002") + b"\x00\x01g", bytes.fromhex(value))
    assert record is not None
    group = restore_group(
        "g", record.value, ClassicGroupSettings(0, 10), now_ms=500, wall_offset_ms=1_000
    )
    assert (group.state, group.generation_id, group.state_timestamp_ms) == (
        GroupState.STABLE,
        4,
        since_ms,
    )
    assert (group.protocol_type, group.protocol_name, group.members.leader_id) == ("c", "r", "m")
    member = group.members["m"]
    assert (member.group_instance_id, member.client_id, member.client_host) == (
        instance_id,
        "c",
        "h",
    )
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (10_000, rebalance_ms)
    assert (member.metadata("r"), member.assignment) == (b"s", b"aa")


@pytest.mark.parametrize(("leader", "expected"), [("b", "b"), ("a", "a"), ("gone", "a")])
def test_group_that_is_read_back_has_its_leader_among_its_members(leader, expected) -> None:
    members = tuple(
        MemberMetadata(
            member_id=member_id,
            client_id="c",
            client_host="h",
            session_timeout=10_000,
            subscription=b"",
            assignment=b"",
        )
        for member_id in "ab"
    )
    value = GroupMetadataValue(
        protocol_type="consumer", generation=4, protocol="r", leader=leader, members=members
    )
    group = restore_group("g", value, ClassicGroupSettings(0, 10), now_ms=0, wall_offset_ms=0)
    assert group.members.leader_id == expected
