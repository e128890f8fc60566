"""Records of `__consumer_offsets`: what is refused, what is passed over, and a layout of Kafka's."""

from __future__ import annotations

import pytest

from isotherm.broker.groups.records import (
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    decode_record,
    encode_key,
    encode_value,
)
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
