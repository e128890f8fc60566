"""aiokafka: producer, consumer and administrator. It asks for old versions only.

Its groups are tried in test_consumer_groups.py, its transactions in test_transactions.py.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import OffsetAndMetadata

from isotherm.testing.embedded_broker import EmbeddedBroker

_numbers = itertools.count()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())


@asynccontextmanager
async def administrator(broker: EmbeddedBroker) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


@asynccontextmanager
async def new_topic(
    broker: EmbeddedBroker, partitions: int = 1
) -> AsyncIterator[tuple[AIOKafkaAdminClient, str]]:
    name = f"aio-{next(_numbers)}"
    async with administrator(broker) as admin:
        new = NewTopic(name, partitions, 1, topic_configs={"retention.ms": "-1"})
        await admin.create_topics([new])
        yield admin, name


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_come_back_in_every_codec(
    broker: EmbeddedBroker, codec: str | None, acks: int | str
) -> None:
    async def scenario() -> None:
        async with new_topic(broker) as (_, topic):
            values = [b"value %d" % number for number in range(100)]
            async with AIOKafkaProducer(
                bootstrap_servers=broker.bootstrap_servers,
                compression_type=codec,
                acks=acks,
                enable_idempotence=acks == "all",
                linger_ms=5,
            ) as producer:
                for value in values:
                    await producer.send(
                        topic, value, b"key", timestamp_ms=1_700_000_000_123, headers=[("h", b"1")]
                    )
                await producer.flush()
            async with AIOKafkaConsumer(
                topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
            ) as consumer:
                records = [await consumer.getone() for _ in values]
            assert [record.value for record in records] == values
            assert [record.offset for record in records] == list(range(len(values)))
            found = {(record.key, record.timestamp, record.headers) for record in records}
            assert found == {(b"key", 1_700_000_000_123, (("h", b"1"),))}

    run(scenario)


def test_consumer_finds_offsets_seeks_and_pauses(broker: EmbeddedBroker) -> None:
    async def scenario() -> None:
        async with new_topic(broker, 2) as (_, topic):
            first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
            async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
                for step in range(5):
                    for partition in (0, 1):
                        await producer.send_and_wait(
                            topic,
                            b"%d" % step,
                            partition=partition,
                            timestamp_ms=1_700_000_000_000 + 10 * step,
                        )
            async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
                consumer.assign([first, second])
                assert await consumer.beginning_offsets([first]) == {first: 0}
                assert await consumer.end_offsets([first]) == {first: 5}
                times = await consumer.offsets_for_times({first: 1_700_000_000_011})
                assert (times[first].offset, times[first].timestamp) == (2, 1_700_000_000_020)
                consumer.pause(second)
                consumer.seek(first, 3)
                records = [await consumer.getone() for _ in range(2)]
                assert [(record.partition, record.offset) for record in records] == [(0, 3), (0, 4)]
                consumer.resume(second)
                await consumer.seek_to_beginning(second)
                assert (await consumer.getone()).partition == 1

    run(scenario)


def test_topics_are_made_grown_configured_and_deleted(broker: EmbeddedBroker) -> None:
    async def scenario() -> None:
        async with new_topic(broker) as (admin, topic):
            assert topic in await admin.list_topics()
            await admin.create_partitions({topic: NewPartitions(3)})
            (described,) = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 3
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.bytes": "77"})
            await admin.alter_configs([resource])
            asked = ConfigResource(ConfigResourceType.TOPIC, topic)
            (answer,) = await admin.describe_configs([asked])
            configs = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            assert configs["retention.bytes"] == "77"
            assert (await admin.describe_cluster())["cluster_id"] == str(
                broker.node.services.cluster_id
            )
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()

    run(scenario)


def test_groups_and_records_are_administered(broker: EmbeddedBroker) -> None:
    async def scenario() -> None:
        async with new_topic(broker) as (admin, topic):
            partition = TopicPartition(topic, 0)
            async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
                for number in range(10):
                    await producer.send_and_wait(topic, b"%d" % number)
            group = f"group-of-{topic}"
            async with AIOKafkaConsumer(
                bootstrap_servers=broker.bootstrap_servers,
                group_id=group,
                enable_auto_commit=False,
            ) as consumer:
                consumer.assign([partition])
                await consumer.commit({partition: OffsetAndMetadata(4, "note")})
            assert group in {each[0] for each in await admin.list_consumer_groups()}
            (described,) = await admin.describe_consumer_groups([group])
            assert described.groups[0][1] == group
            offsets = await admin.list_consumer_group_offsets(group)
            assert offsets[partition] == OffsetAndMetadata(4, "note")
            assert await admin.find_coordinator(group) == broker.config.node_id
            deleted = await admin.delete_records({partition: RecordsToDelete(before_offset=6)})
            assert deleted[partition] == 6

    run(scenario)
