"""How much longer do producers wait while others read history?

A producer sends by a schedule (bench/open_loop.py) with acks=all: first alone, then while consumers
repeatedly read a topic that only the remote tier holds, each at READ_MB_PER_S or as fast as it can.
KIP-405 reports that without tiering reads of old data tripled the 99th percentile of producers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.sharedctypes import Synchronized

from bench import load, open_loop
from bench.cold_consume import TIERED_CONFIG
from bench.fetch_client import FetchClient
from bench.harness import Case, Question, main
from bench.latency import RECORD_SIZE, kafkas_capacity_mb_per_s
from bench.load import Metrics
from bench.logins import connect
from bench.servers import Server
from bench.topics import create, create_filled, delete
from oracle.tiered_topic import fully_tiered
from oracle.topics import wait_until

HISTORY, PRESENT = "history", "present"
HISTORY_BYTES = 400_000_000
SHARE = 0.1
SECONDS = 8.0
READERS = 2
READ_MB_PER_S = 50.0
FETCH_BYTES = 1_048_576


def read_for_ever(address: str, records: int, read_bytes: Synchronized[int]) -> None:
    """Read at READ_MB_PER_S for ever; delays are not caught up."""
    while True:
        client = FetchClient(connect(address, {}), HISTORY, FETCH_BYTES)
        due_s = time.monotonic()
        while client.next_offset < records:
            size = client.fetch()
            with read_bytes.get_lock():
                read_bytes.value += size
            now_s = time.monotonic()
            due_s = max(due_s + size / 1e6 / READ_MB_PER_S, now_s)
            time.sleep(due_s - now_s)
        client.close()


@contextlib.contextmanager
def readers(address: str, records: int, count: int = READERS) -> Iterator[Synchronized[int]]:
    """Run `count` readers; yield their total of bytes read so far."""
    context = multiprocessing.get_context("spawn")
    read_bytes = context.Value("q", 0)
    arguments = (address, records, read_bytes)
    processes = [
        context.Process(target=read_for_ever, args=arguments, daemon=True) for _ in range(count)
    ]
    for process in processes:
        process.start()
    try:
        while not read_bytes.value:
            time.sleep(0.1)
        yield read_bytes
        assert all(process.is_alive() for process in processes), "a reader has given up"
    finally:
        for process in processes:
            process.kill()
            process.join()


def build_cases(scale: float) -> Sequence[Case]:
    records = int(HISTORY_BYTES * scale / RECORD_SIZE / load.BATCH_RECORDS) * load.BATCH_RECORDS
    records_per_s = SHARE * kafkas_capacity_mb_per_s() * 1e6 / RECORD_SIZE
    seconds = max(2.0, SECONDS * scale)
    size = int(2 * records_per_s * RECORD_SIZE * seconds)
    return [
        Case(
            name=f"{READERS} readers at {READ_MB_PER_S:.0f} MB/s",
            parameters={
                "record_size": RECORD_SIZE,
                "records_per_s": round(records_per_s),
                "seconds": seconds,
                "history_bytes": records * RECORD_SIZE,
            },
            bytes_moved=size,
            bytes_written=size,
            prepare=partial(_prepare, records=records),
            measure=partial(
                _measure, records=records, records_per_s=records_per_s, seconds=seconds
            ),
            finish=_finish,
        )
    ]


def _prepare(server: Server, *, records: int) -> None:
    create_filled(
        server,
        topic=HISTORY,
        records=records,
        record_size=RECORD_SIZE,
        compression="none",
        config=TIERED_CONFIG,
    )
    create(server, topic=PRESENT)
    wait_until(lambda: fully_tiered(server.log_dir, HISTORY, 1), f"the tiering of topic={HISTORY}")


def _finish(server: Server) -> None:
    delete(server, topic=HISTORY)
    delete(server, topic=PRESENT)


def _measure(server: Server, *, records: int, records_per_s: float, seconds: float) -> Metrics:
    send = partial(
        open_loop.run,
        server.bootstrap_server,
        PRESENT,
        records_per_s=records_per_s,
        record_size=RECORD_SIZE,
        seconds=seconds,
        receives=False,
    )
    quiet = send()
    with readers(server.bootstrap_server, records) as read_bytes:
        before, start_s = read_bytes.value, time.monotonic()
        busy = send()
        read_mb_per_s = (read_bytes.value - before) / 1e6 / (time.monotonic() - start_s)
    return busy | {
        "quiet_publish_p50_ms": quiet["publish_p50_ms"],
        "quiet_publish_p99_ms": quiet["publish_p99_ms"],
        "publish_p99_times_quiet": busy["publish_p99_ms"] / quiet["publish_p99_ms"],
        "read_mb_per_s": read_mb_per_s,
    }


QUESTION = Question(
    "history_readers", "How much longer do producers wait while others read history?", build_cases
)

if __name__ == "__main__":
    main(QUESTION)
