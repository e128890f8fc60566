"""Others are served while an answer is made that is longer than its request."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

from isotherm.broker.apis import create_topics
from isotherm.broker.loop_turns import PART_SIZE, AnswerTurns
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.partitions.log_dir_moves import FutureReplica
from isotherm.log.log_dir import LogDir
from isotherm.protocol.api_keys import ApiKey
from isotherm.types import TopicPartition

NO_OPERATIONS = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}


def test_a_turn_has_as_many_items_as_are_allowed(turns: list[None]) -> None:
    limit = AnswerTurns(10)

    async def items() -> list[int]:
        counts = []
        for count in (4, 6, 1, 9, 10, 3):
            await limit.take(count)
            counts.append(len(turns))
        return counts

    assert asyncio.run(items()) == [0, 0, 1, 1, 2, 3]


def test_parts_have_at_most_as_many_items(turns: list[None]) -> None:
    assert [len(part) for part in AnswerTurns(10).parts(range(25))] == [10, 10, 5]


def test_metadata_of_one_topic_with_many_partitions_leaves_turns(broker, turns) -> None:
    count = 5 * PART_SIZE
    broker.controller.create_topics([NewTopic(name="t", num_partitions=count)])
    response = broker.call(ApiKey.METADATA, 12, topics=None, **NO_OPERATIONS)
    (topic,) = response.topics
    assert [partition.partition_index for partition in topic.partitions] == list(range(count))
    assert len(turns) >= count / PART_SIZE - 1


def test_metadata_of_all_topics_leaves_turns(broker, turns) -> None:
    count = 3 * PART_SIZE
    new = [NewTopic(name=f"t{number}", num_partitions=1) for number in range(count)]
    broker.controller.create_topics(new)
    assert len(broker.call(ApiKey.METADATA, 12, topics=None, **NO_OPERATIONS).topics) == count
    assert len(turns) >= 2 * count / PART_SIZE - 1


def created(count: int) -> list[dict[str, Any]]:
    """Topics with a setting of their own each, so no two have equal descriptions."""
    return [
        {
            "name": f"t{number}",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": (),
            "configs": ({"name": "retention.ms", "value": str(number)},),
        }
        for number in range(count)
    ]


def test_created_topics_leave_turns_and_have_their_own_settings(broker, turns) -> None:
    count = 4 * create_topics.ANSWERS_PER_TURN
    response = broker.call(ApiKey.CREATE_TOPICS, 7, topics=created(count), validate_only=True)
    values = [
        next(config.value for config in topic.configs if config.name == "retention.ms")
        for topic in response.topics
    ]
    assert values == [str(number) for number in range(count)]
    assert len(turns) >= 3


def test_log_directories_of_all_replicas_leave_turns(broker, turns, tmp_path) -> None:
    count = 4 * PART_SIZE
    here = LogDir(tmp_path)
    logs = [
        SimpleNamespace(
            topic_partition=TopicPartition(f"t{number % 2}", number // 2),
            log_dir=here,
            size_in_bytes=number,
            log_end_offset=7,
        )
        for number in reversed(range(count))
    ]
    copy = FutureReplica(logs[0].topic_partition, here, 5, 3)
    hosted = SimpleNamespace(
        logs=lambda: logs, future_replicas=lambda: [copy], log_dirs=lambda: [here]
    )
    tier = SimpleNamespace(location="s3://b", sizes=lambda: {TopicPartition("t0", 0): 9})
    broker.services = dataclasses.replace(
        broker.services, replica_manager=hosted, remote_log_manager=tier
    )
    local, remote = broker.call(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None).results
    sizes = {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in local.topics
        for partition in topic.partitions
        if not partition.is_future_key
    }
    assert sizes == {log.topic_partition: log.size_in_bytes for log in logs}
    assert list(sizes) == sorted(sizes)
    (future,) = (
        partition
        for topic in local.topics
        for partition in topic.partitions
        if partition.is_future_key
    )
    assert (future.partition_size, future.offset_lag) == (5, 4)
    assert remote.topics[0].partitions[0].partition_size == 9
    assert len(turns) >= count / PART_SIZE - 1
