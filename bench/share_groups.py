"""How fast do the members of a share group get and acknowledge records?

The topic is in the page cache. One, four and sixteen members of confluent-kafka, each a process,
take its records together, in the implicit mode: each poll accepts what the one before gave. A round
is a group of its own, which begins at earliest. Rates are totals, from the first record that any
member gets to the last; a member ends after IDLE_S without one.

The same is measured of Kafka's own client (bench/KafkaShareConsumers.java): its members are threads
of one process, and end when all records are taken.

In two cases a batch has as many records as a member takes with one fetch. One member, and one
consumer whose fetches have room for one batch, read the same topic: the CPU of a share fetch with
its acknowledgement, beside that of a fetch.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Sequence
from functools import partial

import psutil
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench.harness import Case, Question, main
from bench.load import Metrics, begin_at_once, run_java_client
from bench.servers import Server
from bench.topics import create, create_filled, delete

MEMBERS = (1, 4, 16)
RECORD_SIZE = 1024
RECORDS = 200_000
IDLE_S = 4.0
# max.poll.records of a member.
BATCH_RECORDS = 500


def build_cases(scale: float) -> Sequence[Case]:
    records = int(RECORDS * scale)
    of_members = [
        Case(
            name=f"x{members}{client} {RECORD_SIZE} B",
            parameters={"members": members, "record_size": RECORD_SIZE, "records": records},
            bytes_moved=records * RECORD_SIZE,
            prepare=partial(
                create_filled,
                topic=f"shared-{members}",
                records=records,
                record_size=RECORD_SIZE,
                compression="none",
            ),
            measure=partial(measure, members=members, records=records),
            finish=partial(delete, topic=f"shared-{members}"),
            is_quick=members == 4 and not client,
        )
        for client, measure in (("", _measure), (" Java", _measure_java))
        for members in MEMBERS
    ]
    batches = records // BATCH_RECORDS
    by_batch = [
        Case(
            name=f"one {reader}, batches of {BATCH_RECORDS}",
            parameters={"reader": reader, "record_size": RECORD_SIZE, "batches": batches},
            bytes_moved=batches * BATCH_RECORDS * RECORD_SIZE,
            prepare=partial(_fill_by_batch, topic=f"shared-{number}", batches=batches),
            measure=measure,
            finish=partial(delete, topic=f"shared-{number}"),
            is_quick=False,
        )
        for reader, number, measure in (
            (
                "member",
                "batches",
                partial(_measure, members=1, records=batches * BATCH_RECORDS, topic="batches"),
            ),
            (
                "consumer",
                "fetched",
                partial(_measure_consumer, topic="shared-fetched", batches=batches),
            ),
        )
    ]
    return [*of_members, *by_batch]


def _fill_by_batch(server: Server, *, topic: str, batches: int) -> None:
    create(server, topic=topic)
    settings = {
        "bootstrap.servers": server.bootstrap_server,
        "batch.num.messages": BATCH_RECORDS,
        "batch.size": 1_000_000,
        "linger.ms": 60_000,  # a flush ends it
    }
    producer = Producer(settings)
    for _ in range(batches):
        for _ in range(BATCH_RECORDS):
            producer.produce(topic, bytes(RECORD_SIZE))
        if producer.flush(60):
            raise RuntimeError(f"records were not sent topic={topic}")


def _measure_consumer(server: Server, *, topic: str, batches: int) -> Metrics:
    (run,) = begin_at_once(
        [
            "bench.share_groups",
            "consumer",
            server.bootstrap_server,
            topic,
            str(batches * BATCH_RECORDS),
        ],
        1,
    )
    seconds = run["ended_s"] - run["began_s"]
    return {
        "records_per_s": run["records"] / seconds,
        "mb_per_s": run["records"] * RECORD_SIZE / 1e6 / seconds,
        "client_cpu_s": run["client_cpu_s"],
    }


def _new_group(server: Server) -> str:
    """The id of a group that begins at earliest."""
    group = str(uuid.uuid4())
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": server.bootstrap_server})
    admin.incremental_alter_configs([resource])[resource].result()
    return group


def _measure_java(server: Server, *, members: int, records: int) -> Metrics:
    arguments = (f"shared-{members}", _new_group(server), str(records), str(members))
    run = run_java_client("KafkaShareConsumers.java", server.bootstrap_server, *arguments)
    return {
        "records_per_s": (records + run["repeated"]) / run["seconds"],
        "mb_per_s": run["bytes"] / 1e6 / run["seconds"],
        "repeated": run["repeated"],
        "client_cpu_s": run["client_cpu_s"],
    }


def _measure(server: Server, *, members: int, records: int, topic: str | None = None) -> Metrics:
    group = _new_group(server)
    module = [
        "bench.share_groups",
        "member",
        server.bootstrap_server,
        f"shared-{topic or members}",
        group,
    ]
    runs = begin_at_once(module, members)
    taken = sum(run["records"] for run in runs)
    if taken < records:
        raise RuntimeError(f"members got too few records records={taken} of={records}")
    busy = [run for run in runs if run["records"]]
    seconds = max(run["ended_s"] for run in busy) - min(run["began_s"] for run in busy)
    return {
        "records_per_s": taken / seconds,
        "mb_per_s": taken * RECORD_SIZE / 1e6 / seconds,
        "repeated": taken - records,
        "client_cpu_s": sum(run["client_cpu_s"] for run in runs),
    }


def _member(bootstrap_server: str, topic: str, group: str) -> None:
    consumer = ShareConsumer({"bootstrap.servers": bootstrap_server, "group.id": group})
    consumer.subscribe([topic])
    print("ready", flush=True)
    sys.stdin.readline()
    records, began_s, ended_s = 0, 0.0, time.time()
    last_s = time.monotonic() + 30
    while time.monotonic() < last_s:
        messages = [message for message in consumer.poll(0.5) if message.error() is None]
        if messages:
            ended_s = time.time()
            began_s = began_s or ended_s
            records += len(messages)
            last_s = time.monotonic() + IDLE_S
    figures = _figures(records, began_s, ended_s)
    consumer.close()
    print(json.dumps(figures))


def _consumer(bootstrap_server: str, topic: str, records: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_server,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": BATCH_RECORDS * RECORD_SIZE + 50_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    print("ready", flush=True)
    sys.stdin.readline()
    taken, began_s = 0, 0.0
    while taken < records:
        messages = [
            message for message in consumer.consume(BATCH_RECORDS, 0.5) if message.error() is None
        ]
        if messages:
            began_s = began_s or time.time()
            taken += len(messages)
    ended_s = time.time()
    figures = _figures(taken, began_s, ended_s)
    consumer.close()
    print(json.dumps(figures))


def _figures(records: int, began_s: float, ended_s: float) -> Metrics:
    """What a process has to tell, with its CPU until now."""
    cpu = psutil.Process().cpu_times()
    return {
        "records": records,
        "began_s": began_s,
        "ended_s": ended_s,
        "client_cpu_s": cpu.user + cpu.system,
    }


QUESTION = Question(
    "share_groups",
    "How fast do the members of a share group get and acknowledge records?",
    build_cases,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        _member(*sys.argv[2:])
    elif sys.argv[1:2] == ["consumer"]:
        server, topic, records = sys.argv[2:]
        _consumer(server, topic, int(records))
    else:
        main(QUESTION)
