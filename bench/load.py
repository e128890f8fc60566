"""Load from clients that are faster than the brokers, each in its own process.

`produce` and `consume` run librdkafka through confluent-kafka (children: `python -m bench.load`);
`java_produce` runs Kafka's own perf tool, `java_consume` its consumer (bench/KafkaConsumers.java).
All measure from the first record to the last, without the client's start.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from oracle.kafka import java_command, run_tool

LOAD_TIMEOUT_S = 300
BATCH_RECORDS = 1000
CONSUME_RECORDS = 10_000
# The Java tools' value, so that both clients send similar batches.
BATCH_BYTES = 65536
LINGER_MS = 5
IN_FLIGHT_BYTES_MAX = 100_000_000
FETCH_MAX_BYTES = 50 * 1024 * 1024
JAVA_CLIENT_OPTIONS = ("-Xmx1g", "-XX:+UseG1GC")

Metrics: TypeAlias = dict[str, float]


def produce(
    bootstrap_server: str,
    topic: str,
    *,
    records: int,
    record_size: int,
    acks: str = "all",
    compression: str = "none",
    partitions: int = 1,
    properties: Mapping[str, str] | None = None,
) -> Metrics:
    """Send `records` values of `record_size` bytes with librdkafka, to the partitions in turn.

    `properties` are the client's security properties.
    """
    sizes = (str(records), str(record_size), str(partitions))
    further = json.dumps(dict(properties or {}))
    return _run_child("produce", bootstrap_server, topic, *sizes, acks, compression, further)


def consume(bootstrap_server: str, topic: str, *, records: int, consumers: int = 1) -> Metrics:
    """Read `records` records of partition 0 from its first offset with librdkafka.

    Each consumer is a process and reads all records; they begin at the same time. The rates are
    totals, from the first record to the last.
    """
    runs = begin_at_once(
        ["bench.load", "consume", bootstrap_server, topic, str(records)], consumers
    )
    seconds = max(run["ended_s"] for run in runs) - min(run["began_s"] for run in runs)
    return _rates(
        records=sum(run["records"] for run in runs),
        size=sum(run["bytes"] for run in runs),
        seconds=seconds,
        client_cpu_s=sum(run["client_cpu_s"] for run in runs),
    )


def begin_at_once(module: list[str], count: int) -> list[Metrics]:
    """Run `count` processes of a module with its arguments; return the JSON output of each.

    A process prints a line when it is ready, and continues when it reads a line, which comes once
    all are ready.
    """
    children = [
        subprocess.Popen(
            [sys.executable, "-m", *module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )
        for _ in range(count)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=LOAD_TIMEOUT_S)[0] for child in children]
    if any(child.returncode for child in children):
        raise RuntimeError(f"a process failed: {' '.join(module)}")
    return [json.loads(output) for output in outputs]


def java_consume(bootstrap_server: str, topic: str, *, records: int, consumers: int = 1) -> Metrics:
    """As `consume`, with Kafka's own consumer and its defaults, each a thread of one process."""
    arguments = (bootstrap_server, topic, str(records), str(consumers))
    run = run_java_client("KafkaConsumers.java", *arguments)
    return _rates(
        records=records * consumers,
        size=run["bytes"],
        seconds=run["seconds"],
        client_cpu_s=run["client_cpu_s"],
    )


def run_java_client(source: str, *arguments: str) -> Metrics:
    """Run a program of this folder that uses Kafka's own clients; return its JSON output."""
    path = Path(__file__).with_name(source)
    completed = subprocess.run(
        java_command(str(path), *arguments, options=JAVA_CLIENT_OPTIONS),
        stdout=subprocess.PIPE,
        text=True,
        timeout=LOAD_TIMEOUT_S,
        check=True,
    )
    output: Metrics = json.loads(completed.stdout)
    return output


def _rates(*, records: int, size: int, seconds: float, client_cpu_s: float) -> Metrics:
    return {
        "records_per_s": records / seconds,
        "mb_per_s": size / seconds / 1e6,
        "seconds": seconds,
        "client_cpu_s": client_cpu_s,
    }


def java_produce(
    bootstrap_server: str,
    topic: str,
    *,
    records: int,
    record_size: int,
    acks: str = "all",
    compression: str = "none",
    config: Path | None = None,
) -> Metrics:
    """Run kafka-producer-perf-test; its latencies are from just before send() to the callback.

    The file `config` has the client's security properties.
    """
    output = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        f"--topic={topic}",
        f"--num-records={records}",
        f"--record-size={record_size}",
        "--throughput=-1",
        "--producer-props",
        f"bootstrap.servers={bootstrap_server}",
        f"acks={acks}",
        f"compression.type={compression}",
        f"batch.size={BATCH_BYTES}",
        f"linger.ms={LINGER_MS}",
        *(["--command-config", str(config)] if config else []),
    )
    return parse_producer_performance(output, record_size)


_PRODUCER_SUMMARY = re.compile(
    r"(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec .*?"
    r" (?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, (?P<p99>\d+) ms 99th"
)


def parse_producer_performance(output: str, record_size: int) -> Metrics:
    """The figures of the summary line, the last that the tool prints."""
    summaries = list(_PRODUCER_SUMMARY.finditer(output))
    if not summaries:
        raise ValueError(f"no summary in the tool's output:\n{output[-2000:]}")
    summary = summaries[-1]
    rate = float(summary["rate"])
    return {
        "records_per_s": rate,
        "mb_per_s": rate * record_size / 1e6,
        "seconds": float(summary["records"]) / rate,
        "latency_p50_ms": float(summary["p50"]),
        "latency_p95_ms": float(summary["p95"]),
        "latency_p99_ms": float(summary["p99"]),
    }


def _run_child(*arguments: str) -> Metrics:
    completed = subprocess.run(
        [sys.executable, "-m", "bench.load", *arguments],
        capture_output=True,
        text=True,
        timeout=LOAD_TIMEOUT_S,
        cwd=Path(__file__).resolve().parent.parent,
        check=False,
    )
    if completed.returncode != 0:
        raise RuntimeError(f"the load failed: {arguments}\n{completed.stderr[-2000:]}")
    figures: Metrics = json.loads(completed.stdout)
    return figures


def _produce_here(
    bootstrap_server: str,
    topic: str,
    records: int,
    record_size: int,
    partitions: int,
    acks: str,
    codec: str,
    properties: Mapping[str, str],
) -> Metrics:
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_server,
            "acks": acks,
            "compression.type": codec,
            "batch.size": BATCH_BYTES,
            "linger.ms": LINGER_MS,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            # Reports of success cost the client more than sending does.
            "delivery.report.only.error": True,
            "error_cb": errors.append,
            **properties,
        }
    )
    producer.list_topics(topic, timeout=10)
    messages = [
        {"value": value, "partition": number % partitions}
        for number, value in enumerate(_values(record_size))
    ]
    in_flight_max = IN_FLIGHT_BYTES_MAX // record_size
    start = time.monotonic()
    for _ in range(records // BATCH_RECORDS):
        while len(producer) > in_flight_max:
            producer.poll(0.001)
        queued = producer.produce_batch(topic, messages)
        assert queued == BATCH_RECORDS, "the queue is larger than what may be in flight"
    unsent = producer.flush(60)
    seconds = time.monotonic() - start
    if unsent or errors:
        raise RuntimeError(f"records were not sent: unsent={unsent} errors={errors[:3]}")
    sent = records // BATCH_RECORDS * BATCH_RECORDS
    return _rates(records=sent, size=sent * record_size, seconds=seconds, client_cpu_s=_own_cpu_s())


def _consume_here(bootstrap_server: str, topic: str, records: int) -> dict[str, float]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_server,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.max.bytes": FETCH_MAX_BYTES,
            "max.partition.fetch.bytes": 10 * 1024 * 1024,
            "queued.max.messages.kbytes": 262144,
            "queued.min.messages": 1_000_000,
            # With the default the client does not fetch for a second whenever its queue is full.
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.list_topics(topic, timeout=10)
    print("connected", flush=True)
    sys.stdin.readline()
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    # The look-up of the first offset takes the same time on any broker.
    messages = consumer.consume(1, timeout=30)
    count = size = 0
    began_s = time.monotonic()
    while messages:
        if messages[0].error():
            raise RuntimeError(f"the consumer failed: {messages[0].error()}")
        count += len(messages)
        size += sum(map(len, messages))
        messages = consumer.consume(min(CONSUME_RECORDS, records - count), timeout=30)
    ended_s = time.monotonic()
    consumer.close()
    if count < records:
        raise RuntimeError(f"the consumer got too little: expected={records} records={count}")
    return {
        "records": count,
        "bytes": size,
        "began_s": began_s,
        "ended_s": ended_s,
        "client_cpu_s": _own_cpu_s(),
    }


def _values(record_size: int) -> list[bytes]:
    """Random letters, as the Java tool sends them; they compress to about 0.6."""
    state, values = 12345, []
    for _ in range(BATCH_RECORDS):
        letters = bytearray()
        while len(letters) < record_size:
            state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            letters += bytes(65 + (state >> shift) % 26 for shift in (20, 27, 34, 41, 48, 55))
        values.append(bytes(letters[:record_size]))
    return values


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.load")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("produce", "consume"):
        command = commands.add_parser(name)
        command.add_argument("bootstrap_server")
        command.add_argument("topic")
        command.add_argument("records", type=int)
        if name == "produce":
            command.add_argument("record_size", type=int)
            command.add_argument("partitions", type=int)
            command.add_argument("acks")
            command.add_argument("codec")
            command.add_argument("properties", type=json.loads)
    arguments = vars(parser.parse_args())
    run = {"produce": _produce_here, "consume": _consume_here}[arguments.pop("command")]
    print(json.dumps(run(**arguments)))


if __name__ == "__main__":
    _main()
