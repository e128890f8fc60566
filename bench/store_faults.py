"""Does a sick object store slow the broker's local traffic down?

    python -m bench.store_faults [--seconds 8] [--rounds 3] [--keep]

Two brokers tier into one S3 server (versitygw), one of them through a proxy (toxiproxy) that makes
its network bad, toxic by toxic. One producer sends small records to both in turn, at a fixed rate,
to a tiered topic that rolls often, with acks=all: whatever else the machine does meets both alike.
The figure is the 99th percentile of the time to the answer of the broker with the sick store over
that of the other, over all rounds; "sound" has no toxic, and shows what chance does, as do the
smallest and the largest of the single rounds. A busy machine delays single answers more than any
store: the processor time that each broker took says what is the brokers' own. The memory, open
files and threads of the broker with the sick store are those at the end of its rounds.
`--keep` writes bench/results/store_faults.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.harness import RESULTS_DIRECTORY, Question, describe
from isotherm.testing.broker_process import BrokerProcess
from tests.support.s3_server import S3Server, find_versitygw
from tests.support.toxiproxy import Toxiproxy, find_toxiproxy

QUESTION = Question(
    "store_faults", "Does a sick object store slow the broker's local traffic down?", lambda _: []
)
RATE = 400
SIZE = 1000
TOXICS: dict[str, tuple[str, dict[str, int]]] = {
    "sound": ("", {}),
    "latency 500 ms": ("latency", {"latency": 500, "jitter": 100}),
    "64 KB/s": ("bandwidth", {"rate": 64}),
    "reset after 5 ms": ("reset_peer", {"timeout": 5}),
    "no answer": ("timeout", {"timeout": 0}),
    "refused": ("down", {}),
}
TOPIC_CONFIG = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
}


class Sender:
    """Sends to one broker and notes how long each answer takes."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
        self.latencies_ms: list[float] = []

    def send(self) -> None:
        sent = time.perf_counter()

        def answered(*_: object) -> None:
            self.latencies_ms.append((time.perf_counter() - sent) * 1000)

        self._producer.produce("t", bytes(SIZE), on_delivery=answered)

    def poll(self) -> None:
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.flush(30)


class Measured(NamedTuple):
    """What one broker did in one round. The latencies leave out the first half second."""

    latencies_ms: list[float]
    cpu_s: float


def measure(brokers: Sequence[BrokerProcess], seconds: float) -> list[Measured]:
    cpu_before = [cpu_s(broker) for broker in brokers]
    senders = [Sender(broker.bootstrap_servers) for broker in brokers]
    began = time.perf_counter()
    for number in range(int(RATE * seconds)):
        for index in (0, 1) if number % 2 else (1, 0):
            senders[index].send()
        while time.perf_counter() < began + number / RATE:
            for sender in senders:
                sender.poll()
            time.sleep(0.0002)
    for sender in senders:
        sender.flush()
    return [
        Measured(sender.latencies_ms[RATE // 2 :], cpu_s(broker) - before)
        for sender, broker, before in zip(senders, brokers, cpu_before, strict=True)
    ]


def percentile(latencies_ms: Sequence[float], percent: int) -> float:
    return sorted(latencies_ms)[len(latencies_ms) * percent // 100]


def cpu_s(broker: BrokerProcess) -> float:
    times = psutil.Process(broker.process.pid).cpu_times()
    return float(times.user + times.system)


def usage(broker: BrokerProcess) -> dict[str, float]:
    process = psutil.Process(broker.process.pid)
    return {
        "resident_mb": process.memory_info().rss / 1e6,
        "open_files": process.num_fds(),
        "threads": process.num_threads(),
    }


@contextlib.contextmanager
def two_brokers(directory: Path, server: S3Server, proxy: Toxiproxy) -> Iterator[Any]:
    brokers = []
    try:
        for name, port in (("sound", server.port), ("sick", proxy.port)):
            settings = {f"rsm.config.{key}": value for key, value in server.config.items()} | {
                "rsm.config.key.prefix": f"{name}/",
                "rsm.config.s3.endpoint.url": f"http://127.0.0.1:{port}",
                "rsm.config.request.timeout.ms": "2000",
            }
            brokers.append(BrokerProcess(directory / name, settings))
        for broker in brokers:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            admin.create_topics([NewTopic("t", 1, config=TOPIC_CONFIG)])["t"].result(30)
        yield brokers
    finally:
        for broker in brokers:
            broker.kill()


def run(seconds: float, rounds: int) -> list[dict[str, Any]]:
    versitygw, toxiproxy = find_versitygw(), find_toxiproxy()
    if versitygw is None or toxiproxy is None:
        raise SystemExit("scripts/s3-server.sh install and scripts/toxiproxy.sh install are needed")
    measured: dict[str, list[list[Measured]]] = {name: [] for name in TOXICS}
    used: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        S3Server(versitygw, Path(folder) / "buckets") as server,
        Toxiproxy(toxiproxy, server.port) as proxy,
        two_brokers(Path(folder), server, proxy) as brokers,
    ):
        measure(brokers, 3)
        for _ in range(rounds):
            for name, (kind, attributes) in TOXICS.items():
                toxic = proxy.toxic(kind, **attributes) if kind else contextlib.nullcontext()
                with toxic:
                    measured[name].append(measure(brokers, seconds))
                    used[name] = usage(brokers[1])
    return [_figures(name, measured[name]) | used[name] for name in TOXICS]


def _figures(name: str, rounds: Sequence[Sequence[Measured]]) -> dict[str, Any]:
    p99s = [[percentile(side.latencies_ms, 99) for side in sides] for sides in rounds]
    shares = [sick / sound for sound, sick in p99s]
    sound, sick = (
        [latency for sides in rounds for latency in sides[index].latencies_ms] for index in (0, 1)
    )
    cpu_shares = [sick.cpu_s / sound.cpu_s for sound, sick in rounds]
    return {
        "case": name,
        "sound_p50_ms": round(percentile(sound, 50), 2),
        "sound_p99_ms": round(percentile(sound, 99), 2),
        "sick_p50_ms": round(percentile(sick, 50), 2),
        "sick_p99_ms": round(percentile(sick, 99), 2),
        "p99_of_sound": round(percentile(sick, 99) / percentile(sound, 99), 2),
        "smallest": round(min(shares), 2),
        "largest": round(max(shares), 2),
        "cpu_of_sound": round(statistics.median(cpu_shares), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    document = describe(QUESTION, options.rounds)
    document["local_traffic"] = run(options.seconds, options.rounds)
    text = json.dumps(document, indent=1) + "\n"
    print(text)
    if options.keep:
        (RESULTS_DIRECTORY / "store_faults.json").write_text(text)


if __name__ == "__main__":
    main()
