"""Sends records by a schedule, independent of the broker, and measures their delay.

A client that waits for each answer sends less while a broker is slow, and so measures fewer of the
slow moments than its users would see. This client has a schedule. Every latency counts from the
scheduled moment of a record and includes the client's own queue: `publish` until the broker has
acknowledged the record, `end_to_end` until a consumer has it. `delay` is the client's own delay in
sending it. The first part of a run does not count.

Sender and receiver are processes of their own: python -m bench.open_loop send|receive ...
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import subprocess
import sys
import time
from array import array
from pathlib import Path

from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, Producer, TopicPartition

from bench.load import Metrics

TICK_S = 0.002
STARTING_S = 3.0
NOT_COUNTED = 0.2
TIMEOUT_S = 60.0
_PLANNED = struct.Struct(">d")


def run(
    bootstrap_server: str,
    topic: str,
    *,
    records_per_s: float,
    record_size: int,
    seconds: float,
    receives: bool = True,
) -> Metrics:
    """Send to partition 0, and by default receive the records; acks=all."""
    start_s = time.monotonic() + STARTING_S
    plan = [
        bootstrap_server,
        topic,
        f"{records_per_s}",
        f"{record_size}",
        f"{start_s}",
        f"{seconds}",
    ]
    commands = ["send", "receive"] if receives else ["send"]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.open_loop", command, *plan],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parent.parent,
        )
        for command in commands
    ]
    metrics: Metrics = {
        "records_per_s": records_per_s,
        "mb_per_s": records_per_s * record_size / 1e6,
    }
    for child in children:
        output, _ = child.communicate(timeout=STARTING_S + seconds + 2 * TIMEOUT_S)
        if child.returncode:
            raise RuntimeError(f"the load failed: {child.args}")
        metrics |= json.loads(output)
    return metrics


def planned_ticks(records_per_s: float, start_s: float, seconds: float) -> list[tuple[float, int]]:
    """The schedule: times and numbers of records."""
    ticks, sent = [], 0
    for number in range(int(seconds / TICK_S)):
        due = int(records_per_s * (number + 1) * TICK_S)
        if due > sent:
            ticks.append((start_s + number * TICK_S, due - sent))
            sent = due
    return ticks


def percentiles(name: str, latencies_s: array[float]) -> Metrics:
    cuts = statistics.quantiles(latencies_s, n=1000)
    return {
        f"{name}_p50_ms": cuts[499] * 1000,
        f"{name}_p99_ms": cuts[989] * 1000,
        f"{name}_p999_ms": cuts[998] * 1000,
        f"{name}_max_ms": max(latencies_s) * 1000,
    }


def _send(
    bootstrap_server: str,
    topic: str,
    records_per_s: float,
    record_size: int,
    start_s: float,
    seconds: float,
) -> Metrics:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_server,
            "acks": "all",
            "linger.ms": 1,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    producer.list_topics(topic, timeout=10)
    counted_from_s = start_s + NOT_COUNTED * seconds
    publish, delay = array("d"), array("d")
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
            return
        (planned_s,) = _PLANNED.unpack_from(message.value() or b"")
        if planned_s >= counted_from_s:
            publish.append(time.monotonic() - planned_s)

    padding = bytes(record_size - _PLANNED.size)
    for planned_s, count in planned_ticks(records_per_s, start_s, seconds):
        # `poll` serves the delivery callbacks while the sender waits.
        while (left_s := planned_s - time.monotonic()) > 0:
            producer.poll(left_s)
        # Sender and receiver share the machine's monotonic clock, so the value can carry the
        # scheduled time.
        value = _PLANNED.pack(planned_s) + padding
        if planned_s >= counted_from_s:
            delay.append(time.monotonic() - planned_s)
        for _ in range(count - 1):
            producer.produce(topic, value, partition=0)
        # Only one record of each tick is timed: a callback for every record would be most of the
        # client's work.
        producer.produce(topic, value, partition=0, on_delivery=delivered)
    if producer.flush(TIMEOUT_S) or errors:
        raise RuntimeError(f"records were not sent: errors={errors[:3]}")
    return percentiles("publish", publish) | percentiles("delay", delay)


def _receive(
    bootstrap_server: str,
    topic: str,
    records_per_s: float,
    record_size: int,
    start_s: float,
    seconds: float,
) -> Metrics:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_server,
            "group.id": "open-loop",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 262_144,
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    left = sum(count for _, count in planned_ticks(records_per_s, start_s, seconds))
    counted_from_s = start_s + NOT_COUNTED * seconds
    give_up_s = start_s + seconds + TIMEOUT_S
    latencies = array("d")
    while left:
        message = consumer.poll(1.0)
        now_s = time.monotonic()
        if message is None:
            if now_s > give_up_s:
                raise RuntimeError(f"records did not arrive: missing={left}")
            continue
        if message.error():
            raise RuntimeError(f"the consumer failed: {message.error()}")
        left -= 1
        (planned_s,) = _PLANNED.unpack_from(message.value() or b"")
        if planned_s >= counted_from_s:
            latencies.append(now_s - planned_s)
    consumer.close()
    return percentiles("end_to_end", latencies)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.open_loop")
    parser.add_argument("command", choices=("send", "receive"))
    parser.add_argument("bootstrap_server")
    parser.add_argument("topic")
    parser.add_argument("records_per_s", type=float)
    parser.add_argument("record_size", type=int)
    parser.add_argument("start_s", type=float, help="by the monotonic clock")
    parser.add_argument("seconds", type=float)
    arguments = vars(parser.parse_args())
    run_side = {"send": _send, "receive": _receive}[arguments.pop("command")]
    print(json.dumps(run_side(**arguments)))


if __name__ == "__main__":
    _main()
