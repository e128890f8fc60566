"""The vectors come from Kafka's RemoteLogMetadataTopicPartitioner."""

from __future__ import annotations

import uuid

import pytest

from isotherm.remote.metadata.keys import metadata_partition
from isotherm.types import TopicIdPartition

FOO = uuid.UUID("01234567-89ab-cdef-fedc-ba9876543210")
ONE = uuid.UUID(int=1)


@pytest.mark.parametrize(
    ("topic_id", "partition", "expected"),
    [
        (FOO, 0, 11),
        (FOO, 1, 2),
        (FOO, 2, 38),
        (FOO, 3, 12),
        (ONE, 0, 35),
        (ONE, 1, 6),
        (ONE, 2, 18),
    ],
)
def test_metadata_partition_is_the_one_kafka_chooses(
    topic_id: uuid.UUID, partition: int, expected: int
) -> None:
    assert metadata_partition(TopicIdPartition(topic_id, "any name", partition), 50) == expected
