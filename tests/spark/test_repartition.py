"""A topic is copied into another number of partitions, by the command line."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path

from aiokafka.partitioner import murmur2
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import ConsumedRecord, consume_all

TIMEOUT_S = 300
START_MS = 1_700_000_000_000
OLD_PARTITIONS, NEW_PARTITIONS = 3, 5


def produce(broker: EmbeddedBroker, numbers: range) -> None:
    rng = random.Random(numbers.start)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for number in numbers:
        key = None if number % 9 == 0 else b"k%d" % rng.randrange(50)
        producer.produce(
            "old",
            key=key,
            value=b"%d" % number + bytes(500),
            headers=[("n", b"%d" % number)] if number % 4 == 0 else None,
            timestamp=START_MS + number,
        )
    assert producer.flush(TIMEOUT_S) == 0


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pipeline", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def by_key(records: list[ConsumedRecord]) -> dict[bytes | None, list[tuple[object, ...]]]:
    """Everything but the place of each record, in the order of its partition."""
    found = defaultdict(list)
    for record in records:
        found[record.key].append((record.value, record.timestamp_ms, record.headers))
    return found


def test_keys_keep_their_order_and_groups_their_place(spark: SparkSession, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        new = NewTopic("old", OLD_PARTITIONS, config=TIERED_TOPIC)
        admin.create_topics([new])["old"].result(TIMEOUT_S)
        produce(broker, range(6000))
        old = consume_all(broker.bootstrap_servers, "old")
        committed = {partition: 700 * partition for partition in range(OLD_PARTITIONS)}
        group = ConsumerGroupTopicPartitions(
            "readers", [KafkaPartition("old", *each) for each in committed.items()]
        )
        admin.alter_consumer_group_offsets([group])["readers"].result(TIMEOUT_S)
        common = (
            *("repartition", "old", "new", "-b", broker.bootstrap_servers),
            *("--path", str(tmp_path / "bucket"), "--json"),
        )
        shown = run(*common)
        assert "records_at_most" in shown
        assert "new" not in admin.list_topics().topics
        done = json.loads(run(*common, "--partitions", "5", "--groups", "readers", "--run"))

        copied = consume_all(broker.bootstrap_servers, "new")
        # Records without keys have no order between partitions.
        assert {k: sorted(v) if k is None else v for k, v in by_key(copied).items()} == {
            k: sorted(v) if k is None else v for k, v in by_key(old).items()
        }
        for each in copied:
            if each.key is not None:
                assert each.partition == (murmur2(each.key) & 0x7FFFFFFF) % NEW_PARTITIONS

        # The largest offset before which the group has seen everything, by a model.
        seen = {each.value for each in old if each.offset < committed[each.partition]}
        expected = {}
        for partition in range(NEW_PARTITIONS):
            mine = [each for each in copied if each.partition == partition]
            unseen = [each.offset for each in mine if each.value not in seen]
            expected[partition] = min(unseen, default=len(mine))
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("readers")])
        found = {
            topic_partition.partition: topic_partition.offset
            for topic_partition in asked["readers"].result(TIMEOUT_S).topic_partitions
            if topic_partition.topic == "new"
        }
        assert found == expected
        assert {each["partition"]: each["repeated"] for each in done["groups"]} == {
            partition: sum(
                each.partition == partition and each.offset >= first and each.value in seen
                for each in copied
            )
            for partition, first in expected.items()
        }

        # What has arrived since is appended.
        produce(broker, range(6000, 6500))
        run(*common, "--from-offsets", json.dumps(done["ended_at"]), "--run")
        copied = consume_all(broker.bootstrap_servers, "new")
        assert len(copied) == 6500
        old = consume_all(broker.bootstrap_servers, "old")
        keyed = {key: rows for key, rows in by_key(old).items() if key is not None}
        assert {k: rows for k, rows in by_key(copied).items() if k is not None} == keyed
