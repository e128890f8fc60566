"""Runs `isotherm pipeline table` with parsed options: one run, or runs until it is stopped, and the
upkeep after them. Prints what was done.
"""

from __future__ import annotations

import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from isotherm.cli.output import console, error_console, human_size, print_json, print_rows
from isotherm.cli.pipeline_bucket import print_cost
from isotherm.cli.pipeline_options import (
    SparkOptions,
    job_session,
    may_be_small,
    progress,
    spark_errors,
    spark_session,
)
from isotherm.cli.stop_signals import stop_signals
from isotherm.clock import SystemClock
from isotherm.errors import ConfigError
from isotherm.spark.jobs.table import TableRun
from isotherm.spark.jobs.table_follow import FollowSettings, follow
from isotherm.spark.jobs.table_retention import read_log_starts
from isotherm.spark.jobs.table_runs import NextRun, TableRuns, run_name
from isotherm.spark.jobs.table_upkeep import UpkeepDone, UpkeepSettings, keep_tables
from isotherm.spark.options import SourceOptions
from isotherm.spark.tables.open_table import kept_tables
from isotherm.spark.tables.topic_table import TopicTable
from isotherm.spark.tables.upkeep_plan import check_upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AGE = re.compile(r"(\d+)(d|h|m|s)")
_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
KEEP, FOLLOW = RETENTIONS = ("keep", "follow")
_REASONS_SHOWN = 3
_OpenSpark = Callable[[], "SparkSession"]


def upkeep_settings(
    to: str, options: SourceOptions, *, compacts: bool, expire: str | None, retention: str
) -> UpkeepSettings:
    """The settings of upkeep. Raises ConfigError for invalid options, and for a kind of table that
    has no upkeep."""
    if retention not in RETENTIONS:
        raise ConfigError(
            f"no such retention option=--retention value={retention} known={','.join(RETENTIONS)}"
        )
    follows = retention == FOLLOW
    if follows and not options.has_brokers:
        raise ConfigError(
            "only brokers know the log start option=--retention value=follow"
            " hint='--bootstrap-server'"
        )
    upkeep = {
        "--compact": compacts,
        "--expire-snapshots": expire is not None,
        "--retention": follows,
    }
    for option, is_given in upkeep.items():
        if is_given:
            check_upkeep(option, to)
    return UpkeepSettings(
        compacts,
        None if expire is None else _age_ms(expire),
        partial(read_log_starts, options) if follows else None,
    )


def _age_ms(text: str) -> int:
    age = _AGE.fullmatch(text)
    if age is None:
        raise ConfigError(
            f"not a duration option=--expire-snapshots value={text} hint='a number with d, h, m or"
            " s: 7d'"
        )
    return int(age[1]) * _UNITS_MS[age[2]]


class TableCommand:
    """The actions of the command on one table."""

    def __init__(
        self,
        table: TopicTable,
        runs: TableRuns,
        upkeep: UpkeepSettings,
        spark_options: SparkOptions,
        *,
        as_json: bool,
    ) -> None:
        self._table = table
        self._runs = runs
        self._upkeep = upkeep
        self._spark_options = spark_options
        self._as_json = as_json
        self._clock = SystemClock()

    def print_plan(self) -> None:
        with progress("reading offsets"):
            run = self._runs.look()
        rows = [
            {
                "partition": offset_range.topic_partition.partition,
                "start": offset_range.start,
                "end": offset_range.end,
            }
            for offset_range in run.plan.ranges
        ]
        print_rows(("partition", "start", "end"), rows, as_json=self._as_json)
        print_cost(run.cost, as_json=self._as_json)

    def run_once(self) -> None:
        with ExitStack() as opened, progress("reading offsets") as show_step:
            started_s = self._clock.monotonic_s()
            run = self._runs.look()
            self._runs.complete(run)
            done = None
            if run.plan.offsets:
                is_small = run.is_small and may_be_small(self._spark_options)
                session = opened.enter_context(
                    spark_session(self._spark_options, is_small=is_small)
                )
                session = job_session(session, self._spark_options, is_small=is_small)
                done = self._runs.add(session, run, show_step)
        self._print_run(run, done, self._clock.monotonic_s() - started_s)
        if self._upkeep.has_any and (run.exists or done is not None):
            with self._spark_if_needed() as spark:
                self._keep(spark)

    def follow(self, settings: FollowSettings, upkeep_every: int) -> None:
        """Run until a signal stops it. Upkeep runs after every `upkeep_every` commits."""
        stop, commits = threading.Event(), 0

        # PySpark installs its own handler of SIGINT when a session starts, so install ours after
        # that.
        with spark_session(self._spark_options) as spark, stop_signals(stop):

            def run_once() -> None:
                nonlocal commits
                started_s = self._clock.monotonic_s()
                with spark_errors(), progress("reading offsets") as show_step:
                    run = self._runs.look()
                    self._runs.complete(run)
                    done = self._runs.add(spark, run, show_step) if run.plan.offsets else None
                if done is None:
                    return
                self._print_run(run, done, self._clock.monotonic_s() - started_s)
                commits += 1
                if self._upkeep.has_any and commits % upkeep_every == 0:
                    with spark_errors():
                        self._keep(lambda: spark)

            follow(run_once, settings, stop, self._clock, random.Random(), _print_line)  # noqa: S311
        _print_line(
            f"{self._table.name}: stopped after a complete commit; the next start continues from"
            " there"
        )

    @contextmanager
    def _spark_if_needed(self) -> Iterator[_OpenSpark]:
        with ExitStack() as opened:
            sessions: list[SparkSession] = []

            def spark() -> SparkSession:
                if not sessions:
                    session = spark_session(self._spark_options)
                    sessions.append(opened.enter_context(session))
                return sessions[0]

            yield spark

    def _keep(self, spark: _OpenSpark) -> None:
        with progress("upkeep") as show_step:
            tables = kept_tables(self._table)
            done = keep_tables(tables, self._upkeep, spark, run_name(), self._clock, show_step)
        self._print_upkeep(done)

    def _print_run(self, run: NextRun, done: TableRun | None, seconds: float) -> None:
        plan, name = run.plan, self._table.name
        if self._as_json:
            counts = {} if done is None else asdict(done)
            row = {"table": name, "offsets": plan.offsets, "bytes_read": plan.size_in_bytes}
            print_json({**row, **counts, "seconds": round(seconds, 1)})
        elif done is None:
            console().print(f"{name}: the topic has nothing new.")
        else:
            console().print(
                f"{name}: {done.rows} rows, {done.dead_letters} dead letters."
                f" {human_size(plan.size_in_bytes)} of segments became"
                f" {human_size(done.bytes_written)} in {done.files} files, in {seconds:.1f} s"
                f" ({human_size(plan.size_in_bytes / seconds)}/s)."
            )
            for reason, count in list(done.reasons.items())[:_REASONS_SHOWN]:
                line = f"{count} of {done.dead_letters} dead letters: {reason}"
                console().print(line, highlight=False, soft_wrap=True)
        sys.stdout.flush()

    def _print_upkeep(self, done: UpkeepDone) -> None:
        if self._as_json:
            print_json({"table": self._table.name, "upkeep": asdict(done)})
        else:
            console().print(
                f"{self._table.name}: {done.deleted_rows} rows below the log start deleted;"
                f" {done.merged_files} small files became {done.new_files};"
                f" {done.expired_snapshots} snapshots expired, {done.deleted_files} files"
                " deleted."
            )
        sys.stdout.flush()


def _print_line(line: str) -> None:
    error_console().print(f"isotherm: {line}", soft_wrap=True)
