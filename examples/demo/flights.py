"""The demo: a year of flights goes into a topic, cold segments move to a bucket, and Kafka clients
and Spark read the whole topic back, and it becomes an Iceberg table. Every record is checked; exit
status 0 only if all of it held.

    python examples/demo/flights.py [--data-dir isotherm-demo] [--keep-running]
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import clients
import lake
import query
from broker import BrokerProcess, TierState, tier_state
from confluent_kafka import Consumer, TopicPartition
from dataset import Flights, load_flights
from dataset import mean_delays as mean_delays_of_source
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import isotherm.spark

TOPIC = "flights"
PARTITIONS = 3
SEGMENT_BYTES = 4 * 1024 * 1024
TIERING_TIMEOUT_S = 90
METADATA_TOPIC = "__remote_log_metadata"

TOPIC_CONFIG = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    # Copied segments leave the disk at once; the active segment stays.
    "local.retention.bytes": "1",
    "segment.bytes": str(SEGMENT_BYTES),
    # The records' timestamps span a year: segments are closed by size, not by age.
    "segment.ms": str(100 * 365 * 86_400_000),
    "file.delete.delay.ms": "1000",
}
BROKER_CONFIG = {
    # Tasks that wait minutes by default run every half second, so that there is something to see.
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "remote.log.manager.task.interval.ms": "500",
}

console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)


@dataclass
class Report:
    """Seconds and bytes of each step, and every failed check."""

    steps: list[tuple[str, float, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def step(self, name: str, size: int) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.steps.append((name, time.monotonic() - started, size))

    def check(self, name: str, differences: list[str]) -> None:
        verdict = "[green]ok[/green]" if not differences else "[red]failed[/red]"
        console.print(f"  check: {name}: {verdict}")
        for line in differences[:5]:
            console.print(f"    {line}", style="red", markup=False)
        self.problems += [f"{name}: {line}" for line in differences]


def main() -> int:
    arguments = _arguments()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    report = Report()
    data_dir = arguments.data_dir.absolute()
    shutil.rmtree(data_dir, ignore_errors=True)
    data_dir.mkdir(parents=True)
    _headline("Loading the flights of 2013")
    flights = load_flights()
    console.print(f"  {len(flights):,} flights, {_mb(flights.size_in_bytes)} of keys and values")
    _headline("Starting a broker: isotherm serve")
    with BrokerProcess(data_dir, BROKER_CONFIG) as broker:
        console.print(f"  it answers at {broker.bootstrap_server}; its log is {broker.log_path}")
        written = _produce(broker, flights, report)
        state = _wait_for_tiering(broker, flights, report)
        _read_back(broker, flights, written, state, report)
        _ask_spark(broker, flights, report)
        _make_table(broker, flights, report)
        metadata_records = _count_records(broker.bootstrap_server, METADATA_TOPIC)
        _summary(report, flights, state, metadata_records, broker)
        if arguments.keep_running:
            console.print("\nThe broker keeps running; press Enter to stop it.")
            input()
    return 1 if report.problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path("isotherm-demo"))
    parser.add_argument(
        "--keep-running", action="store_true", help="leave the broker up at the end"
    )
    return parser.parse_args()


def _produce(broker: BrokerProcess, flights: Flights, report: Report) -> clients.Written:
    _headline("Producing one record per flight (confluent-kafka, acks=all, idempotent)")
    clients.create_topic(broker.bootstrap_server, TOPIC, PARTITIONS, TOPIC_CONFIG)
    with _progress() as progress, report.step("produce", flights.size_in_bytes):
        return clients.produce_flights(broker.bootstrap_server, TOPIC, flights, progress)


def _wait_for_tiering(broker: BrokerProcess, flights: Flights, report: Report) -> TierState:
    _headline("Waiting until every closed segment is in the bucket, and only there")
    with _progress() as progress, report.step("tier", flights.size_in_bytes):
        task = progress.add_task("bytes off the broker's disk", total=None)
        deadline = time.monotonic() + TIERING_TIMEOUT_S
        state = tier_state(broker, TOPIC, PARTITIONS)
        while not state.settled and time.monotonic() < deadline:
            total = state.remote_bytes + state.local_bytes
            gone = max(0, state.remote_bytes - state.closed_local_bytes)
            progress.update(task, total=total, completed=gone)
            time.sleep(0.2)
            state = tier_state(broker, TOPIC, PARTITIONS)
        progress.update(task, total=state.remote_bytes, completed=state.remote_bytes)
    _show_tiers(state, broker)
    late = [] if state.settled else [f"not settled after {TIERING_TIMEOUT_S} s: {state}"]
    report.check("closed segments are in the bucket, and gone from the broker's disk", late)
    return state


def _read_back(
    broker: BrokerProcess,
    flights: Flights,
    written: clients.Written,
    state: TierState,
    report: Report,
) -> None:
    _headline("Reading everything back from offset 0 (confluent-kafka)")
    share = state.remote_records / len(flights)
    console.print(f"  {state.remote_records:,} records ({share:.0%}) lie in the bucket alone")
    with _progress() as progress, report.step("consume", flights.size_in_bytes):
        differences = clients.read_back(broker.bootstrap_server, TOPIC, flights, written, progress)
    report.check("every key, value, timestamp and offset is as it was sent", differences)


def _ask_spark(broker: BrokerProcess, flights: Flights, report: Report) -> None:
    _headline("Asking Spark: mean departure delay by carrier and month")
    spark_log = broker.data_dir / "spark.log"
    console.print(f"  what Spark itself has to say goes to {spark_log}")
    with report.step("spark: start", 0), _children_log_to(spark_log):
        spark = isotherm.spark.session("isotherm-demo")
    try:
        topic = query.read_topic(spark, broker.bucket_dir, broker.bootstrap_server, TOPIC)
        with report.step("spark: query", flights.size_in_bytes):
            delays = query.mean_delays(spark, topic)
        _show_delays(delays)
        expected = mean_delays_of_source(flights.table)
        report.check(
            f"all {len(expected)} means equal those computed from the source table",
            query.differences(delays, expected),
        )
        rows = topic.count()
        wrong = [] if rows == len(flights) else [f"{rows} rows instead of {len(flights)}"]
        report.check("Spark sees as many rows as were sent", wrong)
    finally:
        spark.stop()


def _make_table(broker: BrokerProcess, flights: Flights, report: Report) -> None:
    _headline("Making the topic an Iceberg table: isotherm pipeline table")
    folder = broker.data_dir / "lake"
    command = lake.command(broker, TOPIC, folder)
    console.print(f"  {' '.join(command)}", soft_wrap=True)
    with report.step("table", flights.size_in_bytes):
        made = lake.make_table(command, broker.data_dir / "spark.log")
    console.print(
        f"  {made['rows']:,} rows, {made['dead_letters']} dead letters,"
        f" {_mb(made['bytes_written'])} of Parquet in {made['files']} files"
    )
    rows, sums = lake.rows_and_sums(folder, f"kafka.{TOPIC}")
    wrong = [] if rows == len(flights) else [f"{rows} rows instead of {len(flights)}"]
    report.check("PyIceberg reads as many rows as were sent", wrong)
    expected = lake.sums_of_source(flights.table)
    report.check(
        f"the sums of {' and '.join(expected)} equal those of the source table",
        [f"{each}: {sums[each]} instead of {n}" for each, n in expected.items() if sums[each] != n],
    )


@contextmanager
def _children_log_to(path: Path) -> Iterator[None]:
    """Within the block, new processes (the JVM and its workers) write their standard error to
    `path`.
    """
    saved = os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _show_tiers(state: TierState, broker: BrokerProcess) -> None:
    table = Table("tier", "segments", "bytes", "where", show_edge=False)
    table.add_row("hot: the broker's disk", str(state.local_segments), _mb(state.local_bytes),
                  str(broker.log_dir))  # fmt: skip
    table.add_row("cold: the bucket", str(state.remote_segments), _mb(state.remote_bytes),
                  str(broker.bucket_dir))  # fmt: skip
    console.print(table)


def _show_delays(delays: dict[tuple[str, int], tuple[int, float]]) -> None:
    table = Table("carrier", *[str(month) for month in range(1, 13)], show_edge=False)
    for carrier in sorted({carrier for carrier, _ in delays}):
        cells = [delays.get((carrier, month)) for month in range(1, 13)]
        table.add_row(carrier, *[f"{cell[1]:.1f}" if cell else "" for cell in cells])
    console.print(table)


def _summary(
    report: Report, flights: Flights, state: TierState, metadata_records: int, broker: BrokerProcess
) -> None:
    _headline("Summary")
    table = Table("step", "seconds", "MB/s", show_edge=False)
    for name, seconds, size in report.steps:
        table.add_row(name, f"{seconds:.1f}", f"{size / 1e6 / seconds:.0f}" if size else "")
    console.print(table)
    console.print(
        f"\n{len(flights):,} records · {state.remote_segments} segments in the bucket"
        f" ({_mb(state.remote_bytes)}, {state.objects} objects) · {state.local_segments} on disk"
        f" ({_mb(state.local_bytes)}) · {metadata_records} metadata records"
    )
    console.print(
        f"\nthe broker's disk: {broker.log_dir}\nthe bucket:        {broker.bucket_dir}"
        f"\nthe table:         {broker.data_dir / 'lake'}"
    )
    shown = _relative(broker.data_dir)
    console.print(
        "\nWhat to try next:"
        f"\n  .venv/bin/isotherm serve --data-dir {shown}            # the same data, up again"
        f"\n  .venv/bin/isotherm remote segments {TOPIC}                  # what lies in the bucket"
        f"\n  .venv/bin/isotherm consume {TOPIC} -n 3 --json              # read from the beginning"
        f"\n  .venv/bin/isotherm dump-log {shown}/log/{TOPIC}-0/*.log  # the tail on disk"
    )
    if report.problems:
        console.print(f"\n[red]{len(report.problems)} checks failed.[/red]")
    else:
        console.print("\n[green]Every check held.[/green]")


def _count_records(bootstrap_server: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap_server, "group.id": "demo"})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        for partition in partitions
    ]
    consumer.close()
    return sum(high - low for low, high in ends)


def _headline(text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def _progress() -> Progress:
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
