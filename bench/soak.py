"""Does a broker's memory stay the same under all kinds of work at once?

For an hour, or `--seconds`, one broker has all of this at the same time: a producer with acks=all
at a share of Kafka's capacity, by a schedule (bench/open_loop.py), and a consumer of its tail, in a
topic whose segments are copied, expire locally, and are deleted from the bucket; cold readers of a
history in the bucket (bench/history_readers.py); a thousand idle connections and two hundred that
send little (bench/connections.py).

Resident memory, descriptors, threads and CPU time are noted every ten seconds. The result has the
medians of the second and of the last quarter: caches are full by then, so what grows between the
two would go on growing. The plot is written beside the result.

A client that cannot keep up does not end the run: a minute of the producer's that fails and a
consumer that falls behind retention are counted. If another client gives up, the samples so far are
written with the reason, the stored result stays, and the status is 1.

    python -m bench.soak --seconds 180 --history-gb 1
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from confluent_kafka import Consumer, TopicPartition

from bench import connections, history_readers, load, open_loop
from bench.cold_consume import TIERED_CONFIG
from bench.fetch_client import FetchClient, OffsetOutOfRange
from bench.harness import LATEST_DIRECTORY, REPOSITORY, Question, describe, keep
from bench.latency import RECORD_SIZE, kafkas_capacity_mb_per_s
from bench.load import Metrics
from bench.logins import connect
from bench.report_soak import PANELS, plot
from bench.servers import IsothermServer, Server
from bench.topics import create, create_filled
from isotherm.testing.local_servers import free_ports
from oracle.tiered_topic import fully_tiered
from oracle.topics import wait_until

PRESENT = "present"
SECONDS = 3600
HISTORY_GB = 20.0
SHARE = 0.5
READERS = 4
IDLE, ACTIVE = 1000, 200
SAMPLE_INTERVAL_S = 10.0
TIMEOUT_S = 60.0
# A round of the producer keeps its delays in memory until its end.
ROUND_S = 60.0
PRESENT_CONFIG = {
    **TIERED_CONFIG,
    "local.retention.bytes": str(256 * 1024 * 1024),
    # Reached within a minute at some 100 MB/s, so that segments are deleted from the bucket, too.
    "retention.bytes": str(4 * 1024 * 1024 * 1024),
}
# Clients that say nothing stay connected: Kafka's default ends them after ten minutes.
SETTINGS = {"connections.max.idle.ms": "-1"}
READ_AHEAD = re.compile(r"^isotherm_remote_read_ahead_memory_bytes (\S+)$", re.MULTILINE)
QUESTION = Question(
    "soak", "Does a broker's memory stay the same under all kinds of work?", lambda _: ()
)


class Sample(NamedTuple):
    """The columns of bench/report_soak.py. `anonymous_mb` is the part of the resident memory that
    no file backs."""

    seconds: float
    resident_mb: float
    anonymous_mb: float
    read_ahead_mb: float
    descriptors: int
    threads: int
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"default {SECONDS}")
    parser.add_argument(
        "--history-gb", type=float, default=HISTORY_GB, help=f"default {HISTORY_GB:.0f}"
    )
    parser.add_argument(
        "--share", type=float, default=SHARE, help=f"of Kafka's capacity, default {SHARE}"
    )
    options = parser.parse_args()
    document = describe(QUESTION, 1)
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-soak-") as directory,
        contextlib.ExitStack() as stack,
    ):
        (port,) = free_ports(1)
        metrics_url = f"http://127.0.0.1:{port}/metrics"
        server = IsothermServer(Path(directory), {**SETTINGS, "prometheus.listener": str(port)})
        stack.callback(server.stop)
        server.start()
        result = measure(server, metrics_url, options)
    document["soak"] = result
    keep(document, is_whole=options.seconds >= SECONDS and not result["failure"])
    path = LATEST_DIRECTORY / "soak.svg"
    path.write_text(plot(result))
    print(f"written: {path.relative_to(REPOSITORY)}", file=sys.stderr)
    if result["failure"]:
        sys.exit(f"a client gave up: {result['failure']}")


def measure(server: Server, metrics_url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Let all clients work for so long. `failure` says why one of them gave up, or is empty."""
    seconds, history_gb = options.seconds, options.history_gb
    records = int(history_gb * 1e9 / RECORD_SIZE / load.BATCH_RECORDS) * load.BATCH_RECORDS
    create_filled(
        server,
        topic=history_readers.HISTORY,
        records=records,
        record_size=RECORD_SIZE,
        compression="none",
        config=TIERED_CONFIG,
    )
    create(server, topic=PRESENT, config=PRESENT_CONFIG)
    create(server, topic=connections.TOPIC)
    wait_until(
        lambda: fully_tiered(server.log_dir, history_readers.HISTORY, 1),
        "the tiering of the history",
    )
    records_per_s = options.share * kafkas_capacity_mb_per_s() * 1e6 / RECORD_SIZE
    address = server.bootstrap_server
    samples: list[Sample] = []
    failure = ""
    try:
        with (
            history_readers.readers(address, records, READERS) as read_bytes,
            _tail_reader(address) as tail,
            _connected(address, seconds),
            _producing(address, records_per_s, seconds) as rounds,
        ):
            for sample in _samples(server, metrics_url, seconds):
                samples.append(sample)
    except (AssertionError, RuntimeError) as error:
        failure = str(error)
    return {
        "case": "all kinds of work",
        "parameters": {
            "seconds": seconds,
            "history_gb": history_gb,
            "records_per_s": round(records_per_s),
            "record_size": RECORD_SIZE,
            "cold_readers": READERS,
            "idle_connections": IDLE,
            "active_connections": ACTIVE,
        },
        "failure": failure,
        "cold_read_mb": round(read_bytes.value / 1e6),
        "tail_read_mb": round(tail.read_bytes.value / 1e6),
        "tail_resets": tail.resets.value,
        "publish_p99_ms": [round(metrics["publish_p99_ms"], 1) for metrics in rounds.ended],
        "failed_rounds": rounds.failed,
        "quarters": quarters(samples),
        "samples": [[round(value, 1) for value in sample] for sample in samples],
    }


def quarters(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """The medians of each panel in the second and in the last quarter, and how many times the first
    the second is."""
    size = max(1, len(samples) // 4)
    medians = {}
    for name in PANELS:
        second, last = (
            statistics.median(getattr(sample, name) for sample in part)
            for part in (samples[size : 2 * size] or samples, samples[-size:])
        )
        medians[name] = {"second": second, "last": last, "times": round(last / second, 3)}
    return medians


class _Rounds:
    """The producer's rounds so far. A round fails if its queue fills or a record is not sent."""

    def __init__(self) -> None:
        self.ended: list[Metrics] = []
        self.failed = 0


class _Tail(NamedTuple):
    """`resets` counts how often the reader had fallen behind retention and went on at the end."""

    read_bytes: Synchronized[int]
    resets: Synchronized[int]


@contextlib.contextmanager
def _producing(address: str, records_per_s: float, seconds: float) -> Iterator[_Rounds]:
    rounds, end_s = _Rounds(), time.monotonic() + seconds

    def produce() -> None:
        while (left_s := end_s - time.monotonic()) > 2 * open_loop.STARTING_S:
            try:
                metrics = open_loop.run(
                    address,
                    PRESENT,
                    records_per_s=records_per_s,
                    record_size=RECORD_SIZE,
                    seconds=min(ROUND_S, left_s - open_loop.STARTING_S),
                    receives=False,
                )
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"a round of the producer failed: {error}", file=sys.stderr)
                rounds.failed += 1
                time.sleep(1.0)  # a broker that is away is not asked without a pause
            else:
                rounds.ended.append(metrics)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield rounds
    finally:
        thread.join()


@contextlib.contextmanager
def _tail_reader(address: str) -> Iterator[_Tail]:
    context = multiprocessing.get_context("spawn")
    tail = _Tail(context.Value("q", 0), context.Value("q", 0))
    process = context.Process(target=read_tail, args=(address, tail), daemon=True)
    process.start()
    try:
        yield tail
        assert process.is_alive(), "the reader of the tail has given up"
    finally:
        process.kill()
        process.join()


def read_tail(address: str, tail: _Tail) -> None:
    """Read the topic of the producer for ever, one fetch behind the other.

    Behind the log start offset it goes on at the end, as with auto.offset.reset=latest.
    """
    client = FetchClient(connect(address, {}), PRESENT, history_readers.FETCH_BYTES)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "soak"})
    while True:
        try:
            size = client.fetch()
        except OffsetOutOfRange:
            partition = TopicPartition(PRESENT, 0)
            _, client.next_offset = consumer.get_watermark_offsets(partition, TIMEOUT_S)
            tail.resets.value += 1  # the only writer
            continue
        with tail.read_bytes.get_lock():
            tail.read_bytes.value += size


@contextlib.contextmanager
def _connected(address: str, seconds: float) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.connections", "run", address]
    command += [str(IDLE), str(ACTIVE), str(seconds)]
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=REPOSITORY)
    try:
        yield
        if client.wait(connections.START_TIMEOUT_S + seconds):
            raise RuntimeError(f"the connections failed: status={client.returncode}")
    finally:
        client.kill()
        client.wait()


def _samples(server: Server, metrics_url: str, seconds: float) -> Iterator[Sample]:
    process, began_s = psutil.Process(server.pid), time.monotonic()
    for number in range(1, int(seconds / SAMPLE_INTERVAL_S) + 1):
        time.sleep(max(0.0, began_s + number * SAMPLE_INTERVAL_S - time.monotonic()))
        with process.oneshot():
            memory, times = process.memory_info(), process.cpu_times()
            sample = Sample(
                time.monotonic() - began_s,
                memory.rss / 1e6,
                (memory.rss - memory.shared) / 1e6,
                _read_ahead_bytes(metrics_url) / 1e6,
                process.num_fds(),
                process.num_threads(),
                times.user + times.system,
            )
        print(
            f"{sample.seconds:7.0f} s {sample.resident_mb:8.1f} MB"
            f" ({sample.anonymous_mb:.1f} without files, {sample.read_ahead_mb:.1f} read ahead)"
            f" {sample.descriptors:6d} descriptors"
            f" {sample.threads:4d} threads {sample.cpu_s:9.1f} CPU-s",
            file=sys.stderr,
        )
        yield sample


def _read_ahead_bytes(metrics_url: str) -> float:
    with urllib.request.urlopen(metrics_url, timeout=TIMEOUT_S) as response:
        match = READ_AHEAD.search(response.read().decode())
    if match is None:
        raise RuntimeError("the broker has no such metric")
    return float(match[1])


if __name__ == "__main__":
    main()
