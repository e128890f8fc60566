"""Do the remote tier's quotas hold? (KIP-956)

    python -m bench.remote_quota [--seconds 20] [--limit-mib 4] [--keep]

One broker with a local folder as its object store is filled, and copies under a limit set while it
runs; then a consumer reads what is cold under a limit. The figures are bytes per second over the
whole measurement against the limit; 10 percent is what is allowed.
`--keep` writes bench/results/remote_quota.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench.harness import RESULTS_DIRECTORY, Question, describe
from isotherm.testing.embedded_broker import EmbeddedBroker

QUESTION = Question("remote_quota", "Do the remote tier's quotas hold?", lambda _: [])
MIB = 1 << 20
TOPIC = "limited"
SEGMENT = 1 * MIB
TOTAL = 240 * MIB


def alter(admin: AdminClient, kind: str, limit: int) -> None:
    name = f"remote.log.manager.{kind}.max.bytes.per.second"
    entry = ConfigEntry(name, str(limit), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


def measure_copy(broker: EmbeddedBroker, seconds: float) -> float:
    def copied() -> float:
        name = "kafka_server_brokertopicmetrics_remotecopybytes_total"
        return broker.node.metrics.value(name, topic=TOPIC)

    first = copied()
    while copied() == first:
        time.sleep(0.01)
    began, before = time.perf_counter(), copied()
    time.sleep(seconds)
    return (copied() - before) / (time.perf_counter() - began)


def measure_fetch(broker: EmbeddedBroker, seconds: float) -> float:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    size = 0
    began = time.perf_counter()
    warm_until = began + 3
    while time.perf_counter() < warm_until:
        consumer.consume(1000, 0.1)
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        size += sum(len(message.value() or b"") for message in consumer.consume(1000, 0.1))
    consumer.close()
    return size / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-mib", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    document = describe(QUESTION, 1)
    limit = options.limit_mib * MIB
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedBroker(
            Path(directory), {"remote.log.manager.copy.max.bytes.per.second": "1"}
        ) as broker,
    ):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        config = {
            "remote.storage.enable": "true",
            "segment.bytes": str(SEGMENT),
            "local.retention.bytes": "1",
        }
        admin.create_topics([NewTopic(TOPIC, 1, config=config)])[TOPIC].result(30)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "queue.buffering.max.kbytes": 400_000,
                "log_level": 0,
            }
        )
        for _ in range(TOTAL // 10_000):
            producer.produce(TOPIC, bytes(10_000))
        producer.flush(60)
        alter(admin, "copy", limit)
        copy = measure_copy(broker, options.seconds)
        alter(admin, "copy", 1 << 40)
        log = broker.node.services.replica_manager.find_partition(TOPIC, None, 0).log
        while log.local_log_start_offset < log.log_end_offset - 2 * SEGMENT // 10_000:
            time.sleep(0.1)
        alter(admin, "fetch", limit)
        fetch = measure_fetch(broker, options.seconds)
    document["quotas"] = [
        {
            "quota": name,
            "limit_bytes_per_s": limit,
            "seconds": options.seconds,
            "bytes_per_s": round(rate),
            "of_limit": round(rate / limit, 3),
        }
        for name, rate in (("copy", copy), ("fetch", fetch))
    ]
    text = json.dumps(document, indent=1) + "\n"
    print(text)
    if options.keep:
        (RESULTS_DIRECTORY / "remote_quota.json").write_text(text)


if __name__ == "__main__":
    main()
