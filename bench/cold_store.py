"""What share of the rate of parallel ranged GETs does a consumer get through the broker?

    python -m bench.cold_store [--rounds N] [--quick]

The tier is an S3 server (versitygw) behind a proxy (toxiproxy) that delays every answer by
20 ms. Sides, in turn, over the same objects:

    GETs alone   ranged GETs by obstore, in a process of its own that keeps nothing; the best of
                 several sizes and numbers at once
    one consumer, new broker; one consumer; four consumers
                 through an Isotherm broker that has no local copy; the consumers are
                 bench.fetch_client and begin at once at the first offset

Consumers, broker, proxy and S3 server share the machine's processors. So one more figure is the
processor time that all of them together take for a GB. A side's share of it is the share of the
rate of GETs alone that it would reach on processors that are never idle. The S3 server's access
log counts the GETs.

The broker is started anew for each round. Its first consumer waits for the kernel to provide the
memory for ranges. The next one finds that memory, without the beginning of the history in it,
because the history is four times as large. GETs alone have their memory before the clock starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import obstore
import psutil

from bench import fetch_client, load
from bench.harness import REPOSITORY, Question, describe, keep
from bench.servers import IsothermServer, ServerUsage
from bench.topics import create_filled
from isotherm.remote.storage.object_client import open_object_store
from isotherm.remote.storage.settings import ObjectStoreSettings
from oracle.tiered_topic import fully_tiered
from oracle.topics import wait_until
from tests.support.s3_server import S3Server, find_versitygw
from tests.support.toxiproxy import Toxiproxy, find_toxiproxy

MIB = 1 << 20
GIB = 1 << 30
LATENCY_MS = 20
TOPIC = "history"
RECORD_SIZE = 1024
SEGMENT_BYTES = 256 * MIB
FETCH_BYTES = MIB
"""The Java consumer's default size of a fetch of one partition."""
WAYS = ((4, 64), (8, 16), (16, 8))
"""GETs at once, MiB of each."""
TIMEOUT_S = 300
SERVERS = ("versitygw", "toxiproxy-server")


class Bench:
    """One history of `size` bytes in the bucket, and its readers."""

    def __init__(self, directory: Path, size: int) -> None:
        self._directory = directory
        self._records = size // RECORD_SIZE // load.BATCH_RECORDS * load.BATCH_RECORDS
        self._broker_directory = directory / "broker"
        self._broker_directory.mkdir()
        self._access_log = directory / "access.log"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the store and its proxy, with the history in the store."""
        s3, proxy = find_versitygw(), find_toxiproxy()
        if s3 is None or proxy is None:
            raise SystemExit("run scripts/s3-server.sh install and scripts/toxiproxy.sh install")
        store = S3Server(s3, self._directory / "s3", access_log=self._access_log)
        with store, Toxiproxy(proxy, store.port) as slow:
            here = psutil.Process().children(recursive=True)
            self._servers = [process for process in here if process.name() in SERVERS]
            self._settings = dict(store.config)
            self._settings["s3.endpoint.url"] = f"http://127.0.0.1:{slow.port}"
            with self._broker() as broker:
                create_filled(
                    broker,
                    topic=TOPIC,
                    records=self._records,
                    record_size=RECORD_SIZE,
                    compression="none",
                    config={
                        "remote.storage.enable": "true",
                        "segment.bytes": str(SEGMENT_BYTES),
                        "local.retention.bytes": "1",
                        "retention.ms": "-1",
                    },
                )
                wait_until(lambda: fully_tiered(broker.log_dir, TOPIC, 1), "the tiering")
                (active,) = (broker.log_dir / f"{TOPIC}-0").glob("*.log")
                self._cold_records = int(active.stem)
            with slow.toxic("latency", latency=LATENCY_MS):
                yield

    @contextlib.contextmanager
    def _broker(self) -> Iterator[IsothermServer]:
        settings = {f"rsm.config.{key}": value for key, value in self._settings.items()}
        broker = IsothermServer(self._broker_directory, settings)
        broker.start()
        try:
            yield broker
        finally:
            broker.stop()

    def gets_alone(self, at_once: int, get_mib: int) -> dict[str, float]:
        arguments = [json.dumps(self._settings), str(at_once), str(get_mib * MIB)]
        return self._counted(lambda: _run_child("bench.cold_store", "--gets", *arguments))

    @contextlib.contextmanager
    def new_broker(self) -> Iterator[IsothermServer]:
        with self._broker() as broker:
            # Loads the kernels before the measurement: that takes longer than the history.
            create_filled(
                broker,
                topic=f"warm-up-{uuid.uuid4()}",
                records=load.BATCH_RECORDS,
                record_size=100,
                compression="none",
            )
            yield broker

    def consumers(self, count: int) -> dict[str, float]:
        """Measure `count` consumers on a broker that has just started."""
        with self.new_broker() as broker:
            return self.consumers_of(broker, count)

    def consumers_of(self, broker: IsothermServer, count: int) -> dict[str, float]:
        usage = ServerUsage(broker)
        figures = self._counted(
            lambda: fetch_client.run(
                broker.bootstrap_server,
                TOPIC,
                records=self._cold_records,
                fetch_bytes=FETCH_BYTES,
                consumers=count,
            )
        )
        gb = count * figures["bytes"] / 1e9
        figures["server_cpu_s_per_gb"] = usage.cpu_s() / gb
        figures["server_resident_mb"] = usage.resident_mb()
        store_cpu_s = figures["store_cpu_s_per_gb"] * figures["bytes"] / 1e9
        figures["store_cpu_s_per_gb"] = store_cpu_s / gb
        figures["cpu_s_per_gb"] = (usage.cpu_s() + figures["client_cpu_s"] + store_cpu_s) / gb
        return figures

    def _counted(self, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """The figures of `measure`, with its GETs per GiB of the history, and with the
        processor time of the store and its proxy, and of all, per GB of it."""
        gets_before, cpu_s_before = self._get_count(), self._store_cpu_s()
        figures = measure()
        gets, store_cpu_s = self._get_count() - gets_before, self._store_cpu_s() - cpu_s_before
        gb = figures["bytes"] / 1e9
        return figures | {
            "gets_per_gib": gets / (figures["bytes"] / GIB),
            "store_cpu_s_per_gb": store_cpu_s / gb,
            "cpu_s_per_gb": (store_cpu_s + figures["client_cpu_s"]) / gb,
        }

    def _store_cpu_s(self) -> float:
        times = [server.cpu_times() for server in self._servers]
        return sum(time_.user + time_.system for time_ in times)

    def _get_count(self) -> int:
        return self._access_log.read_text().count(" s3_GetObject ")


def _at_once(count: int, run: Callable[[], dict[str, float]]) -> list[dict[str, float]]:
    runs: list[dict[str, float]] = []
    threads = [threading.Thread(target=lambda: runs.append(run())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(runs) < count:
        raise RuntimeError("a consumer failed")
    return runs


def _run_child(module: str, *arguments: str) -> dict[str, float]:
    completed = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        cwd=REPOSITORY,
        check=True,
    )
    figures: dict[str, float] = json.loads(completed.stdout)
    return figures


def _get_here(config: Mapping[str, str], at_once: int, get_size: int) -> dict[str, float]:
    """Fetch every `.log` object once, into reused memory."""
    store = open_object_store(ObjectStoreSettings.from_config(dict(config)), create_folder=False)
    sizes = {entry["path"]: entry["size"] for batch in obstore.list(store) for entry in batch}
    ranges = [
        (path, start, min(start + get_size, size))
        for path, size in sorted(sizes.items())
        if path.endswith(".log")
        for start in range(0, size, get_size)
    ]
    waiting, size = iter(ranges), sum(end - start for _, start, end in ranges)
    buffers = [memoryview(bytearray(b"\1") * get_size) for _ in range(at_once)]
    lock = threading.Lock()

    def get_next() -> dict[str, float]:
        with lock:
            buffer = buffers.pop()
        while True:
            with lock:
                part = next(waiting, None)
            if part is None:
                return {}
            path, start, end = part
            at = 0
            for piece in obstore.get(store, path, options={"range": (start, end)}).stream(1):
                buffer[at : at + len(piece)] = memoryview(piece)
                at += len(piece)
            assert at == end - start

    began, cpu_s_before = time.monotonic(), time.process_time()
    _at_once(at_once, get_next)
    seconds, cpu_s = time.monotonic() - began, time.process_time() - cpu_s_before
    return {"mb_per_s": size / seconds / 1e6, "bytes": float(size), "client_cpu_s": cpu_s}


def measure(size: int, rounds: int) -> dict[str, Any]:
    sides: dict[str, list[dict[str, float]]] = {}

    def note(name: str, figures: dict[str, float]) -> None:
        sides.setdefault(name, []).append(figures)
        print(
            f"{name:<30} {figures['mb_per_s']:8.1f} MB/s {figures['gets_per_gib']:6.1f} GETs/GiB"
            f" {figures['cpu_s_per_gb']:6.2f} CPU-s/GB",
            file=sys.stderr,
            flush=True,
        )

    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory:
        bench = Bench(Path(directory), size)
        with bench.running():
            for _ in range(rounds):
                for at_once, get_mib in WAYS:
                    figures = bench.gets_alone(at_once, get_mib)
                    note(f"GETs alone, {at_once} of {get_mib} MiB at once", figures)
                with bench.new_broker() as broker:
                    note("one consumer, new broker", bench.consumers_of(broker, 1))
                    note("one consumer", bench.consumers_of(broker, 1))
                    note("four consumers", bench.consumers_of(broker, 4))
    return _summary(sides)


def _summary(sides: Mapping[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians, and each side's share of the best way of GETs alone, by time and by processor."""
    store = {}
    for name, runs in sides.items():
        rates = [run["mb_per_s"] for run in runs]
        store[name] = {
            metric: statistics.median(run[metric] for run in runs) for metric in runs[0]
        } | {"spread": (max(rates) - min(rates)) / statistics.median(rates), "values": rates}
    alone = [figures for name, figures in store.items() if name.startswith("GETs alone")]
    best = max(figures["mb_per_s"] for figures in alone)
    least_cpu_s = min(figures["cpu_s_per_gb"] for figures in alone)
    for figures in store.values():
        figures["share"] = figures["mb_per_s"] / best
        figures["cpu_share"] = least_cpu_s / figures["cpu_s_per_gb"]
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a quarter of the data, one round")
    parser.add_argument("--gets", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.gets:
        config, at_once, get_size = options.gets
        print(json.dumps(_get_here(json.loads(config), int(at_once), int(get_size))))
        return
    rounds = 1 if options.quick else options.rounds
    document = describe(QUESTION, rounds)
    document["latency_ms"] = LATENCY_MS
    document["store"] = measure(GIB // 2 if options.quick else GIB + SEGMENT_BYTES // 4, rounds)
    keep(document, is_whole=not options.quick)


QUESTION = Question(
    "cold_store",
    "What share of the rate of parallel ranged GETs does a consumer get through the broker?",
    lambda scale: (),
)

if __name__ == "__main__":
    main()
