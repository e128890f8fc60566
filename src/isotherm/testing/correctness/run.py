"""The correctness run: clients work while the broker is killed, paused and restarted.

    python -m isotherm.testing.correctness.run --seconds 30 --seed 7

A round is a new broker in an empty folder, its clients and its faults; then the faults stop, every
record is read once more, mostly from the bucket, and `checker` judges all that any client saw.
Groups and transactions take part when the broker serves them. The seed decides what is done; when
it happens is up to the machine, so that a seed repeats the mix and not the run.

Exit status: 0 none found · 1 anomalies.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from isotherm.clock import Clock, SystemClock
from isotherm.testing.correctness.checker import Anomaly, check, check_copies
from isotherm.testing.correctness.consuming import (
    SESSION_TIMEOUT_MS,
    read_to_the_end,
    run_assigned_reader,
    run_group_member,
)
from isotherm.testing.correctness.copying import copy_the_rest, run_copier
from isotherm.testing.correctness.history import Isolation, Operation
from isotherm.testing.correctness.nemesis import Fault, Nemesis
from isotherm.testing.correctness.producing import run_producer
from isotherm.testing.correctness.transacting import run_transactions
from isotherm.testing.correctness.workload import (
    ADD_PARTITIONS_TO_TXN_KEY,
    CONSUMER_GROUP_HEARTBEAT_KEY,
    COPIES,
    EVENTS,
    JOIN_GROUP_KEY,
    PARTITIONS,
    Workload,
    served_api_keys,
)
from isotherm.testing.local_servers import free_ports

ROUND_S = 30.0
FINAL_POLL_TIMEOUT_S = 60.0
ANOMALIES_SHOWN_MAX = 20

COPIER_IDS = ("copier-0", "copier-1")

CLASSIC: Mapping[str, str] = {
    "group_id": "classic",
    "group_protocol": "classic",
    "session_timeout_ms": str(SESSION_TIMEOUT_MS),
    "heartbeat_interval_ms": "500",
}
CONSUMER: Mapping[str, str] = {"group_id": "consumer", "group_protocol": "consumer"}


@dataclass(slots=True)
class Report:
    """What a run did and found."""

    rounds: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """What operations met that did not succeed."""
    records_sent: int = 0
    records_read: int = 0
    segments_in_bucket: int = 0
    partitions_in_both_tiers: int = 0
    """Partitions that the final readers began in the bucket and ended on the local disk."""
    anomalies: list[Anomaly] = field(default_factory=list)

    def add_operations(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            self.operations[f"{operation.kind.value}:{operation.outcome.value}"] += 1
            if operation.error:
                self.errors[f"{operation.kind.value}:{operation.error}"] += 1
            self.records_sent += len(operation.sends())
            self.records_read += sum(len(poll.reads) for poll in operation.polls())

    def lines(self) -> list[str]:
        faults = " ".join(f"{fault.value}={self.faults[fault]}" for fault in Fault)
        done = " ".join(f"{name}={count}" for name, count in sorted(self.operations.items()))
        errors = " ".join(f"{name}={count}" for name, count in sorted(self.errors.items()))
        names = Counter(anomaly.name for anomaly in self.anomalies)
        found = " ".join(f"{name}={count}" for name, count in sorted(names.items()))
        return [
            f"rounds={self.rounds}",
            f"segments in_bucket={self.segments_in_bucket}",
            f"partitions in_both_tiers={self.partitions_in_both_tiers}",
            f"records sent={self.records_sent} read={self.records_read}",
            f"faults {faults}",
            f"operations {done}",
            f"errors {errors or 'none'}",
            *(f"  {name}: {detail}" for name, detail in self.anomalies[:ANOMALIES_SHOWN_MAX]),
            f"anomalies {found or 'none'}",
        ]


def run(
    *,
    seed: int,
    seconds: float,
    directory: Path,
    clock: Clock,
    say: Callable[[str], None],
) -> Report:
    """Rounds one after the other for about `seconds`; `directory` is emptied after clean ones."""
    report = Report()
    end_s = clock.monotonic_s() + seconds
    while not report.anomalies and (left_s := end_s - clock.monotonic_s()) > 0:
        report.rounds += 1
        rng = random.Random(f"{seed}/{report.rounds}")  # noqa: S311 - choices, not secrets
        folder = directory / f"round-{report.rounds}"
        run_round(report, rng, folder, clock, min(ROUND_S, left_s))
        say(f"seed={seed} round={report.rounds} anomalies={len(report.anomalies)}")
        if not report.anomalies:
            shutil.rmtree(folder)
    return report


def run_round(
    report: Report, rng: random.Random, directory: Path, clock: Clock, seconds: float
) -> None:
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "100",
    }
    nemesis = Nemesis(directory, settings, rng=random.Random(rng.random()), clock=clock)  # noqa: S311
    workload = Workload(nemesis.broker.bootstrap_servers, clock)
    try:
        workload.make_topics()
        _work(workload, nemesis, rng, seconds)
        copies = _serves_copies(workload)
        if copies:
            copy_the_rest(workload, COPIER_IDS[0], FINAL_POLL_TIMEOUT_S)
        for isolation in Isolation:
            read_to_the_end(workload, list(PARTITIONS), isolation, FINAL_POLL_TIMEOUT_S)
        status = nemesis.stop()
        if status != 0:
            raise AssertionError(f"broker stopped badly status={status}")
    finally:
        nemesis.kill()
    operations = workload.history.operations()
    report.add_operations(operations)
    report.faults += nemesis.faults
    report.segments_in_bucket += sum(1 for _ in (directory / "bucket").rglob("*.log"))
    report.partitions_in_both_tiers += _partitions_in_both_tiers(directory)
    report.anomalies += check(operations)
    if copies:
        report.anomalies += check_copies(operations, EVENTS, COPIES)


def _partitions_in_both_tiers(directory: Path) -> int:
    """Partitions whose first records are no longer on the local disk, while the last ones are.

    Nothing is ever deleted from these topics: what is not here is in the bucket.
    """
    count = 0
    for topic, partition_count in PARTITIONS.items():
        for partition in range(partition_count):
            local = (directory / "log" / f"{topic}-{partition}").glob("*.log")
            count += min(int(log.stem) for log in local) > 0
    return count


def _work(workload: Workload, nemesis: Nemesis, rng: random.Random, seconds: float) -> None:
    """The round's threads, until time is up or one of them fails; raises what it raised."""
    works = _works(workload, rng)
    with ThreadPoolExecutor(len(works) + 1, thread_name_prefix="correctness") as pool:
        running: list[Future[None]] = [pool.submit(work) for work in works]
        running.append(pool.submit(nemesis.run, workload.stopping))
        wait(running, timeout=seconds, return_when=FIRST_EXCEPTION)
        workload.stopping.set()
    # A broker that does not start explains what its clients then say: its own error comes first.
    for future in reversed(running):
        future.result()


def _works(workload: Workload, rng: random.Random) -> list[Callable[[], None]]:
    """One worker of each kind that the broker can serve, each with choices of its own."""
    served = served_api_keys(workload.bootstrap_servers)

    def own() -> random.Random:
        return random.Random(rng.random())  # noqa: S311

    works: list[Callable[[], None]] = []
    works += [partial(run_producer, workload, own(), idempotent=each) for each in (False, True)]
    works += [partial(run_assigned_reader, workload, own(), each) for each in Isolation]
    if JOIN_GROUP_KEY in served:
        works += [partial(run_group_member, workload, own(), each, CLASSIC) for each in Isolation]
    if CONSUMER_GROUP_HEARTBEAT_KEY in served:
        works += [partial(run_group_member, workload, own(), each, CONSUMER) for each in Isolation]
    if ADD_PARTITIONS_TO_TXN_KEY in served:
        works += [partial(run_transactions, workload, own(), f"txn-{each}") for each in range(2)]
    if _serves_copies(workload):
        works += [partial(run_copier, workload, own(), each) for each in COPIER_IDS]
    return works


def _serves_copies(workload: Workload) -> bool:
    served = served_api_keys(workload.bootstrap_servers)
    return {JOIN_GROUP_KEY, ADD_PARTITIONS_TO_TXN_KEY} <= served


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Isotherm's correctness run.")
    parser.add_argument("--seed", type=int, help="repeats a mix of operations and faults")
    parser.add_argument("--seconds", type=float, default=ROUND_S, help="how long to work")
    parser.add_argument("--directory", type=Path, help="where brokers keep their data")
    chosen = parser.parse_args(arguments)
    clock = SystemClock()
    seed = chosen.seed if chosen.seed is not None else clock.now_ms()
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="isotherm-correctness-"))
    say = partial(print, file=sys.stderr, flush=True)
    say(f"seed={seed} directory={directory}")
    report = run(
        seed=seed,
        seconds=chosen.seconds,
        directory=directory,
        clock=clock,
        say=say,
    )
    for line in report.lines():
        say(line)
    if report.anomalies:
        return 1
    if chosen.directory is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
