"""What does it cost to copy a topic into more partitions, beside a client that copies it?

Run: python -m bench.repartition [--records 500000] [--rounds 1] [--quick]

A tiered topic of 8 partitions, of values of 1 KiB with keys, is copied into a new topic of 24: by
`isotherm pipeline repartition --run`, until the broker has adopted the new history, and by a loop
of librdkafka's consumer and producer, which reads all records, and sends them with
`murmur2_random` and acks=all until all are acknowledged. Both topics are in one broker, in this
process. CPU is that of all processes. The two take turns; a small topic warms Spark up first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from bench.compact import measured
from isotherm.cli.main import app
from isotherm.spark.session import session
from isotherm.testing.embedded_broker import EmbeddedBroker

OLD_PARTITIONS, NEW_PARTITIONS = 8, 24
VALUE_SIZE = 1024
TIMEOUT_S = 600
CONSUME_RECORDS = 10_000
SETTINGS = {"rlmm.config.remote.log.rewrite.check.interval.ms": "100"}
TOPIC = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "segment.bytes": str(16 << 20),
    "local.retention.bytes": "1",
}


def make_topic(admin: AdminClient, name: str, partitions: int) -> None:
    new = NewTopic(name, partitions, config=TOPIC)
    admin.create_topics([new])[name].result(TIMEOUT_S)


def new_producer(servers: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": servers,
            "partitioner": "murmur2_random",
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 500_000,
        }
    )


def send(
    producer: Producer, topic: str, key: bytes | None, value: bytes | None, at_ms: int
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, timestamp=at_ms)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def fill(servers: str, topic: str, count: int) -> None:
    """Values of digits, half of which repeat."""
    rng = np.random.default_rng(0)
    producer = new_producer(servers)
    for number in range(count):
        half = rng.integers(48, 58, VALUE_SIZE // 2, dtype=np.uint8).tobytes()
        send(producer, topic, b"key-%d" % rng.integers(count), half * 2, 1_700_000_000_000 + number)
    producer.flush(TIMEOUT_S)


def copy_by_client(servers: str, old: str, new: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "copy",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign(
        [TopicPartition(old, number, OFFSET_BEGINNING) for number in range(OLD_PARTITIONS)]
    )
    producer = new_producer(servers)
    ended: set[int | None] = set()
    while len(ended) < OLD_PARTITIONS:
        for message in consumer.consume(CONSUME_RECORDS, 1.0):
            error = message.error()
            if error is None:
                send(producer, new, message.key(), message.value(), message.timestamp()[1])
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise SystemExit(f"the copy loop failed: {error}")
    left = producer.flush(TIMEOUT_S)
    if left:
        raise SystemExit(f"{left} records were not acknowledged")
    consumer.close()


def copy_by_job(broker: EmbeddedBroker, old: str, new: str) -> None:
    arguments = ["pipeline", "repartition", old, new, "-b", broker.bootstrap_servers]
    arguments += ["--path", str(broker.directory / "bucket")]
    result = CliRunner().invoke(app, [*arguments, "--partitions", str(NEW_PARTITIONS), "--run"])
    if result.exit_code != 0:
        raise SystemExit(f"repartition failed with {result.exit_code}:\n{result.output}")


def ends_of(servers: str, topic: str) -> int:
    """The number of records of the new topic."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "ends"})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT_S)[1]
        for number in range(NEW_PARTITIONS)
    ]
    consumer.close()
    return sum(ends)


def run(broker: EmbeddedBroker, side: str, old: str, count: int) -> dict[str, float]:
    servers, new = broker.bootstrap_servers, f"new-{time.monotonic_ns()}"
    admin = AdminClient({"bootstrap.servers": servers})
    if side == "client":
        make_topic(admin, new, NEW_PARTITIONS)
    with measured() as usage:
        started = time.perf_counter()
        if side == "client":
            copy_by_client(servers, old, new)
        else:
            copy_by_job(broker, old, new)
        seconds = time.perf_counter() - started
    copied = ends_of(servers, new)
    if copied != count:
        raise SystemExit(f"{side} copied {copied} records of {count}")
    admin.delete_topics([new])[new].result(TIMEOUT_S)
    return {
        "seconds": seconds,
        "records_per_s": count / seconds,
        "records_per_cpu_s": count / usage.cpu_s,
        "worker_mb": usage.worker_mb,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="an eighth of the records, one round")
    arguments = parser.parse_args()
    count = arguments.records // (8 if arguments.quick else 1)
    runs: dict[str, list[dict[str, float]]] = {"repartition": [], "client": []}
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder,
        EmbeddedBroker(Path(folder) / "broker", SETTINGS) as broker,
    ):
        spark = session("isotherm-bench", master="local[2]")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        sizes = {"small": 20_000, "old": count}
        for topic, size in sizes.items():
            make_topic(admin, topic, OLD_PARTITIONS)
            fill(broker.bootstrap_servers, topic, size)
        for side in runs:
            run(broker, side, "small", sizes["small"])
        for _ in range(1 if arguments.quick else arguments.rounds):
            for side, figures in runs.items():
                figures.append(run(broker, side, "old", count))
                print(side, {k: round(v, 1) for k, v in figures[-1].items()}, file=sys.stderr)
        spark.stop()
    show(count, runs)


def show(count: int, runs: dict[str, list[dict[str, float]]]) -> None:
    def middle(side: str, name: str) -> float:
        return statistics.median(measured[name] for measured in runs[side])

    for side in runs:
        print(
            f"{side:12} {count:9} records   {middle(side, 'records_per_s'):9.0f} records/s"
            f" {middle(side, 'records_per_cpu_s'):9.0f} records/CPU-s"
            f"   worker {middle(side, 'worker_mb'):5.0f} MB"
        )
    for name in ("records_per_s", "records_per_cpu_s"):
        ratio = middle("repartition", name) / middle("client", name)
        print(f"repartition / client, {name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
