"""Records of share groups, byte for byte as Kafka's schemas say."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from isotherm.broker.coordinators.groups.group_records import encode_key, encode_value
from isotherm.broker.coordinators.groups.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    ShareTopicPartitions,
    TopicInfo,
    TopicPartitionsInfo,
    decode_share_record,
)
from isotherm.errors import CorruptMetadataError

ID = uuid.UUID(int=5)
ID_HEX = "00000000000000000000000000000005"
RECORDS: list[tuple[Any, Any, str, str]] = [
    (
        ShareGroupMemberMetadataKey(group_id="g", member_id="m"),
        ShareGroupMemberMetadataValue(
            client_id="c", client_host="h", subscribed_topic_names=("t",)
        ),
        "000a 0001 67 0001 6d",
        "0000 00 02 63 02 68 02 02 74 00",
    ),
    (
        ShareGroupMetadataKey(group_id="g"),
        ShareGroupMetadataValue(epoch=3, metadata_hash=-2),
        "000b 0001 67",
        "0000 00000003 fffffffffffffffe 00",
    ),
    (
        ShareGroupTargetAssignmentMetadataKey(group_id="g"),
        ShareGroupTargetAssignmentMetadataValue(assignment_epoch=3, assignment_timestamp=9),
        "000c 0001 67",
        "0000 00000003 01 00 08 0000000000000009",
    ),
    (
        ShareGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
        ShareGroupCurrentMemberAssignmentValue(
            member_epoch=3,
            previous_member_epoch=2,
            state=0,
            assigned_partitions=(ShareTopicPartitions(topic_id=ID, partitions=(1,)),),
        ),
        "000e 0001 67 0001 6d",
        f"0000 00000003 00000002 00 02 {ID_HEX} 02 00000001 00 00",
    ),
    (
        ShareGroupStatePartitionMetadataKey(group_id="g"),
        ShareGroupStatePartitionMetadataValue(
            initialized_topics=(
                TopicPartitionsInfo(topic_id=ID, topic_name="t", partitions=(0, 1)),
            ),
            deleting_topics=(TopicInfo(topic_id=ID, topic_name="u"),),
        ),
        "000f 0001 67",
        f"0000 01 02 {ID_HEX} 02 74 03 00000000 00000001 00 02 {ID_HEX} 02 75 00 00",
    ),
]


@pytest.mark.parametrize(("key", "value", "key_hex", "value_hex"), RECORDS)
def test_records_are_kafkas_bytes(key: Any, value: Any, key_hex: str, value_hex: str) -> None:
    encoded = bytes.fromhex(key_hex), bytes.fromhex(value_hex)
    assert (encode_key(key), encode_value(value)) == encoded
    assert decode_share_record(*encoded) == (key, value)
    assert decode_share_record(encoded[0], None) == (key, None)


def test_records_of_other_groups_are_none() -> None:
    assert decode_share_record(bytes.fromhex("0003 0001 67"), None) is None


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(CorruptMetadataError, match="ShareGroupMetadataValue version=7"):
        decode_share_record(bytes.fromhex("000b 0001 67"), bytes.fromhex("0007 00"))
