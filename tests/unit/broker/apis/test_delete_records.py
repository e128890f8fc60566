"""DeleteRecords: the new log start offsets, and an error for each partition that fails."""

from __future__ import annotations

import datetime

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.protocol.api_keys import ApiKey


def delete(broker, offset, *, topic="t", partition=0, version=2):
    (result,) = broker.call(
        ApiKey.DELETE_RECORDS,
        version,
        topics=[{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}],
        timeout=datetime.timedelta(seconds=1),
    ).topics
    assert result.name == topic
    assert result.partitions[0].partition_index == partition
    return result.partitions[0].error_code, result.partitions[0].low_watermark


@pytest.fixture
def hosted(broker, tmp_path):
    broker.host(tmp_path / "log")
    broker.controller.create_topics(
        [
            NewTopic(name="t"),
            NewTopic(name="compacted", configs={"cleanup.policy": "compact"}),
            NewTopic(name="both", configs={"cleanup.policy": "compact,delete"}),
            NewTopic(name="kept", configs={"cleanup.policy": ""}),
            NewTopic(name="__consumer_offsets"),
        ]
    )
    for topic in ("t", "compacted", "both", "kept", "__consumer_offsets"):
        broker.append(topic, b"a", b"b", b"c", b"d", b"e")
    return broker


@pytest.mark.parametrize("version", range(3))
def test_log_start_is_raised_and_returned(hosted, version):
    assert delete(hosted, 3, version=version) == (ErrorCode.none, 3)
    log = hosted.services.replica_manager.find_partition("t", None, 0).log
    assert (log.log_start_offset, log.log_end_offset) == (3, 5)


def test_minus_one_deletes_everything(hosted):
    assert delete(hosted, -1) == (ErrorCode.none, 5)


def test_offset_below_the_start_changes_nothing(hosted):
    delete(hosted, 3)
    assert delete(hosted, 1) == (ErrorCode.none, 3)


@pytest.mark.parametrize("topic", ["both", "kept"])
def test_topic_that_is_not_compacted_alone_may_be_deleted_from(hosted, topic):
    """An empty cleanup.policy keeps records until a client deletes them, as in Kafka."""
    assert delete(hosted, 2, topic=topic) == (ErrorCode.none, 2)


@pytest.mark.parametrize(
    ("offset", "topic", "partition", "code"),
    [
        (6, "t", 0, ErrorCode.offset_out_of_range),
        (-2, "t", 0, ErrorCode.offset_out_of_range),
        (1, "t", 1, ErrorCode.unknown_topic_or_partition),
        (1, "gone", 0, ErrorCode.unknown_topic_or_partition),
        (1, "compacted", 0, ErrorCode.policy_violation),
        (1, "__consumer_offsets", 0, ErrorCode.invalid_topic_exception),
        (1, "__remote_log_metadata", 0, ErrorCode.invalid_topic_exception),
    ],
)
def test_failed_deletions_are_reported(hosted, offset, topic, partition, code):
    assert delete(hosted, offset, topic=topic, partition=partition) == (code, -1)
