"""Requests of consumers for one partition, which one call reads, and requests that nearly are such:
as the schema's own codec reads them.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from isotherm.protocol import fetch
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.codec import MALFORMED, decoder, encoder
from isotherm.protocol.entities import entity_of
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

FIRST_VERSION, LAST_VERSION = 14, 18
TOPIC_ID = uuid.UUID(int=7)
PARTITION = {
    "partition": 3,
    "current_leader_epoch": 4,
    "fetch_offset": 9,
    "last_fetched_epoch": -1,
    "log_start_offset": -1,
    "partition_max_bytes": 1000,
}
PLAIN: dict[str, Any] = {
    "max_wait": 500,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "isolation_level": 1,
    "session_id": 77,
    "session_epoch": 5,
    "topics": [{"topic_id": TOPIC_ID, "partitions": [PARTITION]}],
    "forgotten_topics_data": [],
    "rack_id": "",
}


def encoded(version: int, **changes: Any) -> bytes:
    fields = PLAIN | changes
    fields["max_wait"] = datetime.timedelta(milliseconds=fields["max_wait"])
    kind, out = request_class(ApiKey.FETCH, version), bytearray()
    if version < 15:
        fields["replica_id"] = -1
    encoder(kind)(entity_of(kind, fields), out)
    return bytes(out)


def as_request(entity: Any) -> FetchRequest:
    replica_id, epoch = -1, -1
    if hasattr(entity, "replica_state"):
        replica_id, epoch = entity.replica_state.replica_id, entity.replica_state.replica_epoch
    return FetchRequest(
        replica_id,
        int(entity.max_wait.total_seconds() * 1000),
        entity.min_bytes,
        entity.max_bytes,
        entity.isolation_level,
        entity.session_id,
        entity.session_epoch,
        [
            FetchTopic(
                None,
                topic.topic_id,
                [
                    FetchPartition(
                        partition.partition,
                        partition.fetch_offset,
                        partition.partition_max_bytes,
                        partition.current_leader_epoch,
                        partition.last_fetched_epoch,
                        partition.log_start_offset,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in entity.topics
        ],
        [
            ForgottenTopic(None, topic.topic_id, list(topic.partitions))
            for topic in entity.forgotten_topics_data
        ],
        entity.rack_id,
        epoch,
    )


def outcome(read: Callable[[], tuple[FetchRequest, int]]) -> tuple[FetchRequest, int] | None:
    """None if the bytes are no request."""
    try:
        return read()
    except (ProtocolError, *MALFORMED):
        return None


def compare(version: int, data: bytes) -> tuple[FetchRequest, int] | None:
    """What both readers make of the bytes."""
    kind = request_class(ApiKey.FETCH, version)

    def by_schema() -> tuple[FetchRequest, int]:
        entity, position = decoder(kind)(memoryview(data), 0)
        return as_request(entity), position

    result = outcome(lambda: fetch.request_reader(version)(memoryview(data), 0))
    assert result == outcome(by_schema)
    return result


@pytest.mark.parametrize("version", range(FIRST_VERSION, LAST_VERSION + 1))
def test_request_for_one_partition_is_read_as_its_schema_says(version: int) -> None:
    data = encoded(version)
    assert compare(version, data) == (as_request_of_plain(), len(data))
    variants: list[dict[str, Any]] = [
        {"topics": []},
        {"topics": [{"topic_id": TOPIC_ID, "partitions": [PARTITION, PARTITION]}]},
        {"topics": [{"topic_id": None, "partitions": [PARTITION]}]},
        {"rack_id": "a"},
        {"forgotten_topics_data": [{"topic_id": TOPIC_ID, "partitions": [1]}]},
    ]
    for changes in variants:
        assert compare(version, encoded(version, **changes)) is not None


def as_request_of_plain() -> FetchRequest:
    partition = FetchPartition(3, 9, 1000, 4)
    topics = [FetchTopic(None, TOPIC_ID, [partition])]
    return FetchRequest(-1, 500, 1, 1 << 20, 1, 77, 5, topics, [], "")


@pytest.mark.parametrize("version", [15, 18])
def test_request_with_any_byte_changed_is_read_as_its_schema_says(version: int) -> None:
    data = encoded(version)
    for position in range(len(data)):
        for value in (0, 1, 2, 3, 127, 128, 255):
            compare(version, data[:position] + bytes([value]) + data[position + 1 :])


@pytest.mark.parametrize("version", [15, 18])
def test_request_of_another_size_is_read_as_its_schema_says(version: int) -> None:
    data = encoded(version)
    for size in range(len(data)):
        assert compare(version, data[:size]) is None
    read = compare(version, data + b"\0")
    assert read is not None
    assert read[1] == len(data)
