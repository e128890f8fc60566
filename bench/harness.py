"""Run the sides of a question in turn, and store the results.

Rounds go A B A B ..., so that a change in the machine's speed affects both sides. A gigabyte in and
out (a quarter with --quick) warms both up, and the first round of each case is dropped. Figures are
medians over the rounds; the spread beside them is (max - min) / median; the ratio is Isotherm's
median over Kafka's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil

from bench import load, memory, topics
from bench.load import Metrics
from bench.servers import SERVERS, NewServer, Server, ServerUsage, running
from oracle.jars import kafka_version

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS_DIRECTORY = REPOSITORY / "bench" / "results"
LATEST_DIRECTORY = REPOSITORY / ".bench"
"""The last measurement, whole or partial; not in the repository."""
ROUNDS = 3
WARM_UP_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """A case that is measured on both sides.

    `prepare` runs once per side before its first round and is not measured; `measure` runs once a
    round. `bytes_moved` says how much a round sends or reads, for CPU-seconds per gigabyte, and
    `bytes_written` how much of it the server writes to files (bench/memory.py says what for).
    --quick leaves the case out unless `is_quick`.
    """

    name: str
    parameters: Mapping[str, Any]
    bytes_moved: int
    measure: Callable[[Server], Metrics]
    prepare: Callable[[Server], None] = lambda server: None
    finish: Callable[[Server], None] = lambda server: None
    is_quick: bool = True
    bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A question to both sides.

    `name` is that of the result file. `build_cases` gets a scale: 1, or less with --quick.
    `new_servers` make the two sides.
    """

    name: str
    text: str
    build_cases: Callable[[float], Sequence[Case]]
    new_servers: Mapping[str, NewServer] = field(default_factory=lambda: SERVERS)


def main(question: Question, arguments: Sequence[str] | None = None) -> None:
    """The command line of a question's file."""
    parser = argparse.ArgumentParser(description=question.text)
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, one round")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--only", choices=sorted(SERVERS), help="measure one side alone")
    parser.add_argument("--case", help="measure the cases whose name contains this")
    parser.add_argument("--note", help="what a reader has to know of this run, stored with it")
    options = parser.parse_args(arguments)
    names = [options.only] if options.only else list(SERVERS)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    cases = [
        case
        for case in question.build_cases(0.125 if options.quick else 1.0)
        if (options.case is None or options.case in case.name)
        and (case.is_quick or not options.quick)
    ]
    document = describe(question, rounds, options.note)
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory,
        running(names, Path(directory), question.new_servers) as servers,
    ):
        document["results"] = run_question(cases, servers, rounds)
    keep(document, is_whole=not (options.quick or options.only or options.case))


def keep(document: Mapping[str, Any], *, is_whole: bool) -> None:
    """Write the result to LATEST_DIRECTORY; also replace the stored result if `is_whole`."""
    text = json.dumps(document, indent=1) + "\n"
    for directory in [LATEST_DIRECTORY, *([RESULTS_DIRECTORY] if is_whole else [])]:
        directory.mkdir(exist_ok=True)
        path = directory / f"{document['question']}.json"
        path.write_text(text)
        print(f"written: {path.relative_to(REPOSITORY)}", file=sys.stderr)


def run_question(
    cases: Sequence[Case], servers: Sequence[Server], rounds: int
) -> list[dict[str, Any]]:
    """Measure every case in turn, on the same servers."""
    for server in servers:
        warm_up(server, WARM_UP_BYTES if rounds > 1 else WARM_UP_BYTES // 4)
    return [run_case(case, servers, rounds) for case in cases]


def warm_up(server: Server, size: int) -> None:
    """Warm up both paths: a JVM is slow for its first seconds."""
    records = size // 1000
    topics.create_filled(
        server, topic="warm-up", records=records, record_size=1000, compression="none"
    )
    load.consume(server.bootstrap_server, "warm-up", records=records)
    topics.delete(server, topic="warm-up")


def run_case(case: Case, servers: Sequence[Server], rounds: int) -> dict[str, Any]:
    measured: dict[str, list[Metrics]] = {server.name: [] for server in servers}
    for server in servers:
        case.prepare(server)
    for round_number in range(rounds + 1):
        for server in servers:
            memory.make_ready(case.bytes_written * 3 // 2)  # and for the clients
            usage = ServerUsage(server)
            metrics = case.measure(server)
            metrics["server_cpu_s"] = usage.cpu_s()
            metrics["server_cpu_s_per_gb"] = usage.cpu_s() / (case.bytes_moved / 1e9)
            metrics["server_resident_mb"] = usage.resident_mb()
            if round_number:  # the first round warms the case up
                measured[server.name].append(metrics)
                print(_progress(case, server, metrics), file=sys.stderr, flush=True)
    for server in servers:
        case.finish(server)
    sides = {name: summarize(runs) for name, runs in measured.items()}
    return {
        "case": case.name,
        "parameters": dict(case.parameters),
        "bytes": case.bytes_moved,
        "sides": sides,
        "ratios": ratios(sides),
        "ratio_ranges": ratio_ranges(sides),
    }


def summarize(runs: Sequence[Metrics]) -> dict[str, dict[str, float]]:
    """Median, spread and single values of each metric."""
    return {
        name: {
            "median": statistics.median(values),
            "spread": _spread(values),
            "values": [round(value, 4) for value in values],
        }
        for name in runs[0]
        for values in [[run[name] for run in runs]]
    }


def ratios(sides: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Isotherm's median over Kafka's, per metric; empty unless both were measured."""
    if not {"isotherm", "kafka"} <= sides.keys():
        return {}
    ours, theirs = sides["isotherm"], sides["kafka"]
    return {
        name: ours[name]["median"] / theirs[name]["median"]
        for name in ours
        if theirs.get(name, {}).get("median")
    }


def ratio_ranges(sides: Mapping[str, Mapping[str, Any]]) -> dict[str, list[float]]:
    """The smallest and the largest ratio of each metric, between the same rounds of the two
    sides.
    """
    if not {"isotherm", "kafka"} <= sides.keys():
        return {}
    ranges = {}
    for name, ours in sides["isotherm"].items():
        theirs = sides["kafka"].get(name, {}).get("values", [])
        pairs = zip(ours["values"], theirs, strict=False)
        rounds = [our / their for our, their in pairs if their]
        if rounds:
            ranges[name] = [round(min(rounds), 4), round(max(rounds), 4)]
    return ranges


def describe(question: Question, rounds: int, note: str | None = None) -> dict[str, Any]:
    """The environment of a result, recorded before the measurement."""
    return {
        "question": question.name,
        "text": question.text,
        **({"note": note} if note else {}),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rounds": rounds,
        "commit": commit(),
        "machine": _machine(),
        "load_average": round(os.getloadavg()[0], 2),
        "versions": _versions(),
    }


def _progress(case: Case, server: Server, metrics: Metrics) -> str:
    return (
        f"{case.name:<32} {server.name:<9} {metrics['mb_per_s']:8.1f} MB/s"
        f" {metrics['records_per_s']:12,.0f} records/s"
        f" {metrics['server_cpu_s_per_gb']:6.2f} server CPU-s/GB"
    )


def _spread(values: Sequence[float]) -> float:
    median = statistics.median(values)
    return (max(values) - min(values)) / median if median else 0.0


def commit() -> str:
    """The commit of the measured source, marked if the source differs from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "src")
    return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")


def _machine() -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": platform.system(),
    }


def _versions() -> dict[str, str]:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return {
        "isotherm": version("isotherm"),
        "kafka": kafka_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "java": java.stderr.splitlines()[0],
        "python": platform.python_version(),
    }
