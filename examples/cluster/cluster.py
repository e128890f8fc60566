"""The demo of a cluster: a controller of Apache Kafka, three brokers of Isotherm, a topic with
three replicas in the remote tier. While a client produces with acks=all, the brokers are killed and
started again, one after the other. Everything is read back and checked, by a client and in Spark.

    python examples/cluster/cluster.py [--mixed] [--data-dir isotherm-cluster-demo]

With --mixed one of the three brokers is Apache Kafka. The exit status is 0 only if every check
held.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import isotherm.spark
from oracle.cluster_members import IsothermMember, KafkaMember
from oracle.kafka_cluster import ControllerOracle
from oracle.topics import wait_until

TOPIC = "events"
PARTITIONS = 3
REPLICAS = 3
RECORDS = 300_000
VALUE_SIZE = 100
TOPIC_CONFIG = {
    "min.insync.replicas": "2",
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "local.retention.bytes": "1",
    "segment.bytes": "1048576",
    "file.delete.delay.ms": "1000",
}

logging.getLogger("isotherm").setLevel(logging.ERROR)
console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)


def main() -> int:
    arguments = _arguments()
    root = arguments.data_dir.absolute()
    shutil.rmtree(root, ignore_errors=True)
    bucket = root / "bucket"
    bucket.mkdir(parents=True)
    problems: list[str] = []
    with ExitStack() as stack:
        console.rule("A controller of Apache Kafka", align="left")
        controller = ControllerOracle(root / "controller")
        controller.start()
        stack.callback(controller.kill)
        console.print(f"  it answers at {controller.address}")
        members = _start_members(stack, root, controller, bucket, mixed=arguments.mixed)
        servers = ",".join(member.bootstrap_server for member in members)
        _create_topic(servers)
        acknowledged = _produce_under_kills(servers, members, problems)
        _check("every partition has all its in-sync replicas again", _await_isr(servers), problems)
        _check_copied(bucket, problems)
        _check("a client reads back what was acknowledged", _read(servers, acknowledged), problems)
        _check("Spark reads the same from the bucket", _ask_spark(servers, bucket), problems)
        console.rule("Stopping", align="left")
        for member in members:
            started = time.monotonic()
            member.stop()
            console.print(
                f"  broker {member.node_id} stopped in {time.monotonic() - started:.1f} s"
            )
    console.print(
        f"\n{len(problems)} problems" if problems else "\n[green]Every check held.[/green]"
    )
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mixed", action="store_true", help="one broker is Apache Kafka")
    parser.add_argument("--data-dir", type=Path, default=Path("isotherm-cluster-demo"))
    return parser.parse_args()


def _start_members(
    stack: ExitStack, root: Path, controller: ControllerOracle, bucket: Path, *, mixed: bool
) -> list[IsothermMember | KafkaMember]:
    console.rule("Three brokers", align="left")
    kinds: list[type[IsothermMember | KafkaMember]] = [IsothermMember] * 3
    if mixed:
        kinds[1] = KafkaMember
    members = []
    for node_id, kind in enumerate(kinds, start=1):
        member = kind(root / f"broker-{node_id}", controller, node_id=node_id, bucket=bucket)
        stack.callback(member.kill)
        started = time.monotonic()
        member.start()
        console.print(
            f"  broker {node_id} ({member.kind}) serves {member.bootstrap_server} after"
            f" {time.monotonic() - started:.1f} s"
        )
        members.append(member)
    return members


def _create_topic(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    topic = NewTopic(TOPIC, PARTITIONS, REPLICAS, config=TOPIC_CONFIG)
    for created in admin.create_topics([topic], operation_timeout=60).values():
        created.result(60)


def _produce_under_kills(
    servers: str, members: list[IsothermMember | KafkaMember], problems: list[str]
) -> dict[int, list[int]]:
    """The sequence numbers that were acknowledged, by partition and in order of their offsets."""
    console.rule("Producing with acks=all, while brokers are killed", align="left")
    acknowledged: dict[int, dict[int, int]] = {number: {} for number in range(PARTITIONS)}
    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error.str())
        else:
            sequence = int((message.value() or b"")[:12])
            acknowledged[message.partition() or 0][message.offset() or 0] = sequence

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 120_000,
            # Killed brokers are no news here.
            "log_level": 0,
        }
    )
    done = threading.Event()
    killer = threading.Thread(target=_kill_in_turn, args=(members, servers, done, problems))
    with _progress() as progress:
        task = progress.add_task("records", total=RECORDS)
        killer.start()
        padding = b"x" * (VALUE_SIZE - 12)
        for sequence in range(RECORDS):
            while True:
                try:
                    producer.produce(
                        TOPIC,
                        b"%012d" % sequence + padding,
                        partition=sequence % PARTITIONS,
                        on_delivery=delivered,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            if sequence % 500 == 0:
                producer.poll(0)
                progress.update(task, completed=sum(map(len, acknowledged.values())))
                # Slow enough that every broker is killed while records are on their way.
                while not done.is_set() and sequence > RECORDS * 0.9:
                    producer.poll(0.2)
        producer.flush(120)
        progress.update(task, completed=sum(map(len, acknowledged.values())))
    killer.join()
    _check("every record was acknowledged", sorted(set(failed)), problems)
    return {
        number: [by_offset[offset] for offset in sorted(by_offset)]
        for number, by_offset in acknowledged.items()
    }


def _kill_in_turn(
    members: list[IsothermMember | KafkaMember],
    servers: str,
    done: threading.Event,
    problems: list[str],
) -> None:
    try:
        for member in members:
            _await_isr_or_raise(servers)
            member.kill()
            killed = time.monotonic()
            # Its session ends, and the other brokers take over its partitions.
            wait_until(
                lambda member=member: not _in_sync(servers, member.node_id),
                "the killed broker to be out",
            )
            member.start()
            _await_isr_or_raise(servers)
            console.print(
                f"  broker {member.node_id} ({member.kind}) was killed, and is in sync again after"
                f" {time.monotonic() - killed:.1f} s"
            )
    except Exception as error:
        problems.append(f"killing brokers in turn: {type(error).__name__}: {error}")
        console.print(f"  {problems[-1]}", style="red", markup=False)
    finally:
        done.set()


def _await_isr_or_raise(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def is_whole() -> bool:
        topic = admin.list_topics(TOPIC, timeout=30).topics[TOPIC]
        partitions = topic.partitions.values()
        return len(partitions) == PARTITIONS and all(len(p.isrs) == REPLICAS for p in partitions)

    wait_until(is_whole, f"{REPLICAS} in-sync replicas of every partition", 90)


def _in_sync(servers: str, node_id: int) -> bool:
    """Whether a broker is among the in-sync replicas of a partition."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topic = admin.list_topics(TOPIC, timeout=30).topics[TOPIC]
    return any(node_id in partition.isrs for partition in topic.partitions.values())


def _await_isr(servers: str) -> list[str]:
    try:
        _await_isr_or_raise(servers)
    except TimeoutError as error:
        return [str(error)]
    return []


def _check_copied(bucket: Path, problems: list[str]) -> None:
    def copied() -> list[Path]:
        return sorted(bucket.glob("kafka-tiered-storage/events-*/*.log"))

    expected = RECORDS * VALUE_SIZE // (2 * 1024 * 1024)
    try:
        wait_until(lambda: len(copied()) >= expected, f"{expected} segments in the bucket")
    except TimeoutError as error:
        _check("closed segments are in the bucket", [str(error)], problems)
    else:
        _check(f"{len(copied())} closed segments are in the bucket", [], problems)


def _read(servers: str, acknowledged: dict[int, list[int]]) -> list[str]:
    differences = []
    for partition, expected in acknowledged.items():
        found = _sequences(servers, partition, len(expected))
        if found != expected:
            differences.append(
                f"partition {partition}: {len(found)} records, {len(expected)} acknowledged,"
                f" missing {len(set(expected) - set(found))},"
                f" repeated {len(found) - len(set(found))}"
            )
    return differences


def _sequences(servers: str, partition: int, count: int) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    found: list[int] = []
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for message in consumer.consume(5_000, 1.0):
            error = message.error()
            if error is None:
                found.append(int((message.value() or b"")[:12]))
            elif error.code() == KafkaError._PARTITION_EOF and len(found) >= count:
                consumer.close()
                return found
    consumer.close()
    return found


def _ask_spark(servers: str, bucket: Path) -> list[str]:
    console.rule("The same topic in Spark", align="left")
    options = {
        "path": bucket.as_uri(),
        "layout": "local-tiered-storage",
        "subscribe": TOPIC,
        "kafka.bootstrap.servers": servers,
    }
    rows = isotherm.spark.read(isotherm.spark.session(), options)
    found = rows.selectExpr(
        "count(*) as rows",
        "count(distinct cast(substring(cast(value as string), 1, 12) as long)) as distinct_rows",
        "sum(cast(substring(cast(value as string), 1, 12) as long)) as total",
    ).first()
    expected = (RECORDS, RECORDS, RECORDS * (RECORDS - 1) // 2)
    return [] if found is not None and tuple(found) == expected else [f"{found} is not {expected}"]


def _check(name: str, differences: list[str], problems: list[str]) -> None:
    verdict = "[green]ok[/green]" if not differences else "[red]failed[/red]"
    console.print(f"  check: {name}: {verdict}")
    for line in differences[:5]:
        console.print(f"    {line}", style="red", markup=False)
    problems += [f"{name}: {line}" for line in differences]


def _progress() -> Progress:
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


if __name__ == "__main__":
    sys.exit(main())
