"""How fast do record batches become Arrow columns, and how long do the kernels take to load?

Run: python -m bench.record_decode [--quick]

Every side checks the CRC of every batch, decompresses it, and copies offset, timestamp, key and
value of every record into new memory, which it frees soon after, like a reader that passes records
on:

    columns       isotherm.record.columns into Arrow columns, 2 MiB of records at a time as the
                  Spark source asks for them
    reader        isotherm.record.batch.read_records: an object to each record
    kafka-python  kafka.record.MemoryRecords: an object with two `bytes` to each record
    aiokafka      aiokafka.record.MemoryRecords, with its compiled parts: the same
    java          the Java client's MemoryRecords: keys and values as arrays, in a JVM that is warm
                  (bench/KafkaDecode.java)
    floor         the work of every reader: google-crc32c over all of the bytes, and one
                  copy of them, or their codec's library

The same bytes in turn (A B C A B C ...) after a round that warms up, on one thread. Rates are per
CPU-second of the whole process, with the JVM's collector, so that other work on the machine weighs
less. Loading is measured in new processes with a warm cache, Numba's import and the kernels apart,
in seconds of the clock and of the CPU. Prints a table, and the same as JSON into bench/results/.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
from aiokafka.record.memory_records import MemoryRecords

from bench.harness import Question, describe, keep
from isotherm.kernels.loading import load_all
from isotherm.record.batch import (
    CompressionType,
    NewRecord,
    build_batch,
    iterate_batches,
    read_records,
    verify_batch_crc,
)
from isotherm.record.batch_header import CODEC_MASK
from isotherm.record.batch_table import read_batch_table
from isotherm.record.columns import COLUMNS, decode_columns
from isotherm.record.compression import decompress
from oracle.kafka import java_command

ROUNDS = 7
PASSES = 2
"""Passes over the same bytes in a round, after one that warms caches and memory."""
SLOW_SHARE = 8
"""Sides that make an object of each record get one of this many parts of the batches, in one
pass without a warm-up.
"""
RECORDS = 140_000
VALUE_SIZE = 100
PIECE_SIZE = 2 * 1024 * 1024
"""The default of the Spark source's option."""
TIMESTAMP_MS = 1_700_000_000_000
JVM_WARM_UP_ROUNDS = 60
PACKAGES = ("numba", "numpy", "pyarrow", "kafka-python", "aiokafka")
QUESTION = Question(
    "record_decode",
    "How fast do record batches become Arrow columns, on one thread?",
    lambda scale: (),
)
LOAD_STEPS = ("import numba", "import columns (pyarrow, numpy)", "load kernels from cache")
LOAD_SCRIPT = """
import time
def now():
    print(time.perf_counter(), time.process_time())
now()
import numba
now()
import isotherm.record.columns
now()
import isotherm.kernels.columns, isotherm.kernels.batches, isotherm.kernels.crc
now()
"""


class Side(NamedTuple):
    """A decoder.

    `decode` returns the number of records in consecutive batches, and the CPU-seconds of a pass. It
    gets the first of `share` equal parts of the input.
    """

    decode: Callable[[bytes], tuple[int, float]]
    share: int = 1


def make_batches(records: int, per_batch: int, codec: CompressionType, headers: int) -> bytes:
    """Records of 10-byte keys and 100-byte values, which are half random, half repeated."""
    rng = random.Random(1)
    header_list = [(f"header-{index}", b"value") for index in range(headers)]
    run = bytearray()
    for base in range(0, records, per_batch):
        run += build_batch(
            [
                NewRecord(
                    TIMESTAMP_MS + offset,
                    b"key-%06d" % (offset % 1_000_000),
                    rng.randbytes(VALUE_SIZE // 2) + bytes(VALUE_SIZE // 2),
                    header_list,
                )
                for offset in range(base, base + per_batch)
            ],
            base_offset=base,
            compression=codec,
        )
    return bytes(run)


def timed(decode: Callable[[bytes], int]) -> Side:
    def side(run: bytes) -> tuple[int, float]:
        count = decode(run)
        started = time.process_time()
        for _ in range(PASSES):
            decode(run)
        return count, (time.process_time() - started) / PASSES

    return Side(side)


def timed_in_part(decode: Callable[[bytes], int]) -> Side:
    def side(run: bytes) -> tuple[int, float]:
        started = time.process_time()
        count = decode(run)
        return count, time.process_time() - started

    return Side(side, SLOW_SHARE)


def columns_side(columns: frozenset[str]) -> Side:
    def decode(run: bytes) -> int:
        rest, count = memoryview(run), 0
        while rest:
            decoded = decode_columns(rest, columns=columns, decoded_size_max=PIECE_SIZE)
            rest = rest[decoded.position_end :]
            count += decoded.count
        return count

    return timed(decode)


def touch_all(run: bytes) -> int:
    """The floor (see the module's docstring). Counts records by the batch headers."""
    data, batches = np.frombuffer(run, dtype=np.uint8), read_batch_table(run)[0]
    codec = CompressionType(int(batches["attributes"][0]) & CODEC_MASK)
    for start in range(0, len(data), PIECE_SIZE):
        piece = data[start : start + PIECE_SIZE]
        google_crc32c.value(piece)
        if codec is CompressionType.NONE:
            piece.copy()
    if codec is not CompressionType.NONE:
        places = zip(
            batches["payload_start"].tolist(), batches["payload_end"].tolist(), strict=True
        )
        for start, end in places:
            decompress(codec, memoryview(run)[start:end])
    return int(batches["records_count"].sum())


def read_by_record(run: bytes) -> int:
    count = 0
    for position, header in iterate_batches(run):
        verify_batch_crc(run, position, header)
        count += len(read_records(run, position, header))
    return count


def read_by_kafka_python(run: bytes) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.record import MemoryRecords
    count = 0
    for batch in MemoryRecords(run):
        if not batch.validate_crc():
            raise ValueError("kafka-python finds a wrong CRC")
        count += sum(1 for _ in batch)
    return count


def read_by_aiokafka(run: bytes) -> int:
    batches, count = MemoryRecords(run), 0
    while (batch := batches.next_batch()) is not None:
        if not batch.validate_crc():
            raise ValueError("aiokafka finds a wrong CRC")
        count += sum(1 for _ in batch)
    return count


@contextmanager
def java() -> Iterator[Side]:
    """A warm JVM that runs all cases."""
    source = Path(__file__).with_name("KafkaDecode.java")
    command = java_command(str(source), options=["-Xmx1g", "-XX:+UseG1GC"])
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(line: str) -> int:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    def decode(run: bytes) -> tuple[int, float]:
        with tempfile.NamedTemporaryFile() as file:
            file.write(run)
            file.flush()
            ask(file.name)
        ask("1")
        started = time.clock_gettime(cpu_clock(process.pid))
        count = ask(str(PASSES))
        return count, (time.clock_gettime(cpu_clock(process.pid)) - started) / PASSES

    for _ in range(JVM_WARM_UP_ROUNDS):
        decode(make_batches(20_000, 140, CompressionType.NONE, 0))
    try:
        yield Side(decode)
    finally:
        process.stdin.close()
        process.wait()


def cpu_clock(process_id: int) -> int:
    """The CPU-time clock of a process with all its threads: clock_getcpuclockid(3)."""
    return (~process_id << 3) | 2


DEFAULT_COLUMNS = frozenset({"offset", "timestamp", "key", "value"})
SLOW_SIDES: dict[str, Side] = {
    "reader": timed_in_part(read_by_record),
    "kafka-python": timed_in_part(read_by_kafka_python),
    "aiokafka": timed_in_part(read_by_aiokafka),
}


def cases(records: int, java_side: Side) -> Iterable[tuple[str, bytes, dict[str, Side]]]:
    default = {
        "columns": columns_side(DEFAULT_COLUMNS),
        "java": java_side,
        "floor": timed(touch_all),
    }
    for codec in CompressionType:
        sides = default | SLOW_SIDES
        if codec is CompressionType.SNAPPY:  # kafka-python would need another package
            sides.pop("kafka-python")
        yield f"{codec.name.lower()}, 16 KiB batches", make_batches(records, 140, codec, 0), sides
    plain = CompressionType.NONE
    yield "none, 1 MiB batches", make_batches(records, records // 16, plain, 0), default
    yield "none, 1-record batches", make_batches(records // 4, 1, plain, 0), default
    yield (
        "none, no key, no value",
        make_batches(records, 140, plain, 0),
        {"columns": columns_side(frozenset({"offset", "timestamp"}))},
    )
    yield (
        "none, 2 headers each",
        make_batches(records, 140, plain, 2),
        {"columns": columns_side(COLUMNS), "java": java_side} | SLOW_SIDES,
    )


def measure(run: bytes, sides: dict[str, Side], rounds: int) -> dict[str, dict[str, float]]:
    parts = {share: part_of(run, share) for share in {side.share for side in sides.values()}}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(rounds + 1):
        for name, side in sides.items():
            part, records = parts[side.share]
            count, taken = side.decode(part)
            if count != records:
                raise ValueError(f"a side finds other records side={name} {count=} {records=}")
            if round_number:
                seconds[name].append(taken)
    measured = {}
    for name, values in seconds.items():
        part, records = parts[sides[name].share]
        median = statistics.median(values)
        measured[name] = {
            "records_per_s": records / median,
            "mb_per_s": len(part) / 1e6 / median,
            "spread": spread(values),
        }
    return measured


def part_of(run: bytes, share: int) -> tuple[bytes, int]:
    """The first of `share` parts of equally many batches, and the records that their headers
    declare.
    """
    batches = read_batch_table(run)[0]
    batches = batches[: len(batches) // share]
    return run[: int(batches["payload_end"][-1])], int(batches["records_count"].sum())


def measure_loading(rounds: int) -> dict[str, dict[str, float]]:
    load_all()  # so that the cache is warm
    steps: dict[str, list[tuple[float, float]]] = {name: [] for name in LOAD_STEPS}
    for _ in range(rounds):
        command = [sys.executable, "-c", LOAD_SCRIPT]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        times = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
        for name, before, after in zip(LOAD_STEPS, times[:-1], times[1:], strict=True):
            steps[name].append((after[0] - before[0], after[1] - before[1]))
    return {
        name: {
            "seconds": statistics.median(wall for wall, _ in values),
            "cpu_seconds": statistics.median(cpu for _, cpu in values),
            "spread": spread([wall for wall, _ in values]),
        }
        for name, values in steps.items()
    }


def spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, not stored")
    quick = parser.parse_args().quick
    records = RECORDS // 8 if quick else RECORDS
    rounds = 3 if quick else ROUNDS
    document = describe(QUESTION, rounds)
    document["versions"] |= {name: version(name) for name in PACKAGES}
    document |= {"value_size": VALUE_SIZE, "loading": measure_loading(rounds), "decoding": []}
    for name, entry in document["loading"].items():
        print(
            f"{name:<34} {entry['seconds']:.3f} s   {entry['cpu_seconds']:.3f} CPU-s"
            f"   spread {entry['spread']:.0%}"
        )
    with java() as java_side:
        for name, run, sides in cases(records, java_side):
            results = measure(run, sides, rounds)
            document["decoding"].append({"case": name, "bytes": len(run), "sides": results})
            print_case(name, results)
    keep(document, is_whole=not quick)


def print_case(name: str, results: dict[str, dict[str, float]]) -> None:
    for side, result in results.items():
        print(
            f"{name:<26} {side:<13} {result['records_per_s'] / 1e6:7.2f} M records/s"
            f" {result['mb_per_s']:8.0f} MB/s   spread {result['spread']:.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
