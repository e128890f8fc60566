"""The answer for each partition of a request about committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.types import TopicPartition


def topic_codes(topics: Iterable[Any], codes: Mapping[TopicPartition, ErrorCode]) -> list[Any]:
    """The request's topics with an error code for each partition: UNKNOWN_TOPIC_OR_PARTITION for
    one without a code, which does not exist."""
    unknown = ErrorCode.unknown_topic_or_partition
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": entry.partition_index,
                    "error_code": codes.get(
                        TopicPartition(topic.name, entry.partition_index), unknown
                    ),
                }
                for entry in topic.partitions
            ],
        }
        for topic in topics
    ]
