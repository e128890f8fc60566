"""Measure questions, each in a process of its own, and write docs/benchmarks.md.

    python -m bench                        the questions beside Apache Kafka, in an hour
    python -m bench --quick                shares of them that one can wait for, then the check of
                                           the ratios; nothing is stored
    python -m bench --all                  the further questions too
    python -m bench latency produce        these, in this order
    python -m bench --list                 what there is, with the minutes it takes

A question that fails, or takes more than three times its minutes, is given up. Its name is printed
again at the end, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.harness import LATEST_DIRECTORY, REPOSITORY

PATIENCE = 3.0
"""The time limit of a question is this factor times its minutes, plus two minutes."""


class Task(NamedTuple):
    """A question's module, its minutes on two quiet cores, and its minutes with --quick.

    Without --quick the module gets `arguments`, which keep the sum of all questions at an hour.
    """

    name: str
    minutes: float
    quick_minutes: float | None = None
    arguments: tuple[str, ...] = ()


TWO_ROUNDS = ("--rounds", "2")
COMPARED = (
    Task("limits", 0.6, 0.2),
    Task("record_decode", 1.1, 0.3),
    Task("metadata_bootstrap", 2.5, 0.3, ("--years", "1", "5", *TWO_ROUNDS)),
    Task("cleaner", 3.4, 0.4, TWO_ROUNDS),
    Task("produce", 5.5, 0.8, TWO_ROUNDS),
    Task("latency", 2.8, 0.6, TWO_ROUNDS),
    Task("tail_consume", 6.1, 0.8, TWO_ROUNDS),
    Task("cold_consume", 3.3, 0.6, TWO_ROUNDS),
    Task("cold_store", 1.4, None, TWO_ROUNDS),
    Task("history_readers", 3.1, None, TWO_ROUNDS),
    Task("tiering", 3.3, None, TWO_ROUNDS),
    Task("connections", 1.9, None, TWO_ROUNDS),
    Task("partitions", 11.3, 0.5),
    Task("share_groups", 4.0, 0.4, TWO_ROUNDS),
    Task("spark_beside_kafka", 9.0, None, ("--rounds", "1")),
)
"""Each question of the table at the top of docs/benchmarks.md has its answer here, or in CLUSTERS.
latency, tiering and history_readers use shares of the capacity that produce measures."""

CLUSTERS = (Task("replication", 15.0, 6.0),)
"""Compared with a cluster of Apache Kafka: too long for the hour."""

FURTHER = (
    Task("growth", 3.0),
    Task("start_stop", 16.0),
    Task("loop_handover", 0.2),
    Task("first_record", 3.0),
    Task("coordinators", 12.0),
    Task("replica", 12.0),
    Task("hostile_clients", 2.0),
    Task("security_cases", 12.0),
    Task("metadata_memory", 3.0),
    Task("metadata_pipeline", 4.0),
    Task("remote_events", 4.0),
    Task("index_cache", 1.0),
    Task("secured", 4.0),
    Task("access_checks", 2.0),
    Task("failed_logins", 2.0),
    Task("remote_quota", 1.0),
    Task("store_faults", 3.0),
    Task("fault_histories", 4.0),
    Task("spark_cold_read", 7.0),
    Task("spark_scale", 6.0),
    Task("spark_handover", 2.0),
    Task("spark_tail", 2.0),
    Task("small_jobs", 4.0),
    Task("large_jobs", 9.0),
    Task("compact", 3.0),
    Task("erase", 4.0),
    Task("repartition", 4.0),
    Task("write_history", 5.0),
    Task("table", 10.0),
    Task("console", 1.0),
)


def main() -> int:
    tasks = {task.name: task for task in (*COMPARED, *CLUSTERS, *FURTHER)}
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    parser.add_argument("questions", nargs="*", metavar="question", help="default: see --list")
    parser.add_argument("--quick", action="store_true", help="a share of the data, one round")
    parser.add_argument("--all", action="store_true", help="the further questions too")
    parser.add_argument("--list", action="store_true", help="list the questions")
    options = parser.parse_args()
    unknown = set(options.questions) - tasks.keys()
    if unknown:
        parser.error(f"no such question: {', '.join(sorted(unknown))}; see --list")
    if options.list:
        _list()
        return 0
    chosen = [tasks[name] for name in options.questions]
    if not chosen:
        chosen = [*COMPARED, *((*CLUSTERS, *FURTHER) if options.all else ())]
        if options.quick:
            chosen = [task for task in chosen if task.quick_minutes is not None]
    if options.quick and not options.questions:
        shutil.rmtree(LATEST_DIRECTORY, ignore_errors=True)
    failed = run(chosen, is_quick=options.quick)
    if not options.quick and _module("report"):
        failed.append("report")
    if not options.questions and _module("floors", *(["--latest"] if options.quick else [])):
        failed.append("floors")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(tasks: Sequence[Task], *, is_quick: bool) -> list[str]:
    """Measure the questions in turn; returns the names of failed ones."""
    failed = []
    minutes = [(task.quick_minutes if is_quick else None) or task.minutes for task in tasks]
    began = time.monotonic()
    for number, task in enumerate(tasks):
        left = sum(minutes[number:])
        print(
            f"== {number + 1} of {len(tasks)}: {task.name}, about {minutes[number]:.1f} minutes;"
            f" {left:.0f} to go",
            file=sys.stderr,
            flush=True,
        )
        question_began = time.monotonic()
        patience_s = 60 * (2 + PATIENCE * minutes[number])
        arguments = ("--quick",) if is_quick else task.arguments
        status = _module(task.name, *arguments, timeout_s=patience_s)
        took = (time.monotonic() - question_began) / 60
        verdict = "done" if status == 0 else f"failed with status {status}"
        print(f"== {task.name}: {verdict} after {took:.1f} minutes", file=sys.stderr, flush=True)
        if status:
            failed.append(task.name)
    print(f"== all of it took {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
    return failed


def _module(name: str, *arguments: str, timeout_s: float | None = None) -> int:
    """Run a module of this package in its own process: questions share neither memory nor threads.

    The process leads its own session, which is killed at the end with all processes that it has
    started.
    """
    command = [sys.executable, "-m", f"bench.{name}", *arguments]
    process = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):  # every process of it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _list() -> None:
    groups = (
        ("beside Apache Kafka", COMPARED),
        ("beside a cluster of Apache Kafka", CLUSTERS),
        ("further", FURTHER),
    )
    for title, tasks in groups:
        print(f"{title}, {sum(task.minutes for task in tasks):.0f} minutes:")
        for task in tasks:
            quick = f", quick {task.quick_minutes:g}" if task.quick_minutes else ""
            print(f"  {task.name:<20} {task.minutes:4.1f} minutes{quick}")


if __name__ == "__main__":
    sys.exit(main())
