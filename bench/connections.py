"""What do a thousand idle and two hundred active clients cost?

The idle clients have asked for the API versions once and stay connected. Each active client sends a
record every PERIOD_S to one topic, by a schedule, and waits for the answer to the previous record
first. Latencies count from the schedule (bench/open_loop.py says why). All active clients share a
process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.harness import Case, Question, main
from bench.load import Metrics
from bench.open_loop import percentiles
from bench.servers import Server
from bench.topics import create, delete
from isotherm.record.batch import build_batch
from oracle.raw_requests import read_answer, request_frame

TOPIC = "connections"
SECONDS = 10.0
WARM_UP_S = 2.0
PERIOD_S = 0.1
RECORD_SIZE = 1000
# idle, active
POINTS = ((1000, 200),)
PRODUCE, API_VERSIONS = 0, 18
START_TIMEOUT_S = 60
_SIZE = struct.Struct(">i")


def _produce_frame() -> bytes:
    batch = bytes(build_batch([(1_700_000_000_000, b"key", bytes(RECORD_SIZE), ())])).hex()
    topic = {"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}
    fields = {"acks": -1, "timeout": 30_000, "topic_data": [topic]}
    return _framed(request_frame(PRODUCE, 9, fields))


def _framed(request: bytes) -> bytes:
    return _SIZE.pack(len(request)) + request


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> bytes:
    writer.write(frame)
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return await reader.readexactly(size)


async def _work(
    address: str, frame: bytes, first_s: float, end_s: float, latencies_s: array[float]
) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = await _ask(reader, writer, frame)
    partition = read_answer(PRODUCE, 9, answer).responses[0].partition_responses[0]
    assert partition.error_code == 0, partition
    planned_s = first_s
    while planned_s < end_s:
        await asyncio.sleep(planned_s - time.monotonic())
        again = await _ask(reader, writer, frame)
        assert len(again) == len(answer), "the broker refuses a record"
        latencies_s.append(time.monotonic() - planned_s)
        planned_s += PERIOD_S
    writer.close()


async def _run(address: str, idle: int, active: int, seconds: float) -> Metrics:
    host, _, port = address.rpartition(":")
    versions = _framed(request_frame(API_VERSIONS, 0, {}))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(idle):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            await _ask(reader, writer, versions)
        frame = _produce_frame()
        latencies_s = array("d")
        start_s = time.monotonic() + WARM_UP_S
        workers = [
            _work(address, frame, start_s + PERIOD_S * n / active, start_s + seconds, latencies_s)
            for n in range(active)
        ]
        await asyncio.gather(*workers)
    return percentiles("publish", latencies_s)


def _measure(server: Server, *, idle: int, active: int, seconds: float) -> Metrics:
    command = [sys.executable, "-m", "bench.connections", "run", server.bootstrap_server]
    command += [str(idle), str(active), str(seconds)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        timeout=START_TIMEOUT_S + 2 * seconds,
        cwd=Path(__file__).resolve().parent.parent,
        check=True,
    )
    records_per_s = active / PERIOD_S
    rates = {"records_per_s": records_per_s, "mb_per_s": records_per_s * RECORD_SIZE / 1e6}
    latencies: Metrics = json.loads(done.stdout)
    return rates | latencies


def build_cases(scale: float) -> Sequence[Case]:
    """One case for each of POINTS."""
    seconds = max(2.0, SECONDS * scale)
    return [
        Case(
            name=f"{idle:,} idle, {active:,} active",
            parameters={"period_s": PERIOD_S, "record_size": RECORD_SIZE, "seconds": seconds},
            bytes_moved=int(active / PERIOD_S * RECORD_SIZE * (seconds + WARM_UP_S)),
            prepare=partial(create, topic=TOPIC),
            measure=partial(_measure, idle=idle, active=active, seconds=seconds),
            finish=partial(delete, topic=TOPIC),
        )
        for idle, active in POINTS
    ]


QUESTION = Question(
    "connections", "What do a thousand idle and two hundred active clients cost?", build_cases
)


def _main() -> None:
    if sys.argv[1:2] != ["run"]:
        main(QUESTION)
        return
    parser = argparse.ArgumentParser(prog="python -m bench.connections run")
    parser.add_argument("address")
    parser.add_argument("idle", type=int)
    parser.add_argument("active", type=int)
    parser.add_argument("seconds", type=float)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(asyncio.run(_run(**vars(parser.parse_args(sys.argv[2:]))))))


if __name__ == "__main__":
    _main()
