"""Common parts of the commands of `isotherm pipeline`: options, a Spark session, progress, rows."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.progress import (
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from isotherm.cli.options import parse_pairs
from isotherm.cli.output import console, error_console, human_row, print_json, print_rows
from isotherm.cli.spark_interruption import end_spark, interruption, own_sigint_handler
from isotherm.errors import ConfigError, SparkJobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The exit code if the job found damage, or a difference between two sides that should be equal.
EXIT_FOUND = 3
_MASTERS = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
_STANDALONE = "spark://"
_MASTER_PORT = 7077
_MASTER_TIMEOUT_S = 5.0
"""For all masters of an address together."""
# Whether the running command has `isotherm pipeline --debug`.
debugging: ContextVar[bool] = ContextVar("debugging", default=False)
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SILENT = "-Disotherm.spark.log.level=off"
_FAILED_QUERIES = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""The loggers of PySpark's driver for errors of queries."""
_JAVA_TRACE = "spark.sql.pyspark.jvmStacktrace.enabled"
_PYTHON_TRACE = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
# Spark's default is 200, which is meant for clusters. On one machine each partition would be a
# Python task for a few rows. If the rows do not fit into memory, Spark spills them to disk.
_SHUFFLE_PARTITIONS_LOCAL = 8
_CHOICES_OF_TOPICS = frozenset({"subscribe", "subscribepattern", "assign"})
TABLE_ROWS_MAX = 100

Master = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="ISOTHERM_SPARK_MASTER",
        metavar="URL",
        help="Where Spark runs: local[N], or a cluster's spark://, yarn, k8s:// address.",
    ),
]
SparkConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--spark-config",
        metavar="KEY=VALUE",
        help="A setting of Spark, such as spark.executor.memory=4g. May be given many times.",
    ),
]
OptionalBootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        help="The cluster: Isotherm's or any Kafka cluster's.",
    ),
]
TierPath = Annotated[
    str | None,
    typer.Option(
        "--path",
        metavar="URL",
        help="The remote tier: s3://bucket/prefix, gs://, az://, file:///folder or a folder.",
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="An option of the Spark source, such as s3.endpoint.url=http://localhost:9000,"
        " key.prefix=kafka/ or metadata=bucket. May be given many times.",
    ),
]

DEFAULT_MASTER = "local[*]"


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The Spark that a job runs on."""

    master: Master = DEFAULT_MASTER
    spark_config: SparkConfig = None


def source_texts(
    path: str | None,
    option: list[str] | None,
    bootstrap_server: str | None,
    client: Mapping[str, str],
) -> dict[str, str]:
    """The options of the Spark source (isotherm.spark.option_parsing) from a command line. If they
    choose no topics, all topics are read. -o overrides the other options."""
    texts = {} if path is None else {"path": path}
    if bootstrap_server is not None:
        texts["kafka.bootstrap.servers"] = bootstrap_server
    texts |= {f"kafka.{key}": value for key, value in client.items()}
    texts |= parse_pairs(option)
    if not _CHOICES_OF_TOPICS & {name.lower() for name in texts}:
        texts["subscribePattern"] = ".*"
    return texts


def may_be_small(options: SparkOptions) -> bool:
    """Whether a job plans by the size of its input. With the setting `spark.isotherm.smallInput`
    false it plans as for a large one."""
    from isotherm.spark.small_input import IS_SMALL

    return parse_pairs(options.spark_config).get(IS_SMALL, "true") != "false"


def job_session(spark: SparkSession, options: SparkOptions, *, is_small: bool) -> SparkSession:
    """`spark`, or for a small input the session that small_input.py describes."""
    from isotherm.spark.small_input import small_session

    return small_session(spark, parse_pairs(options.spark_config)) if is_small else spark


@contextmanager
def spark_session(options: SparkOptions, *, is_small: bool = False) -> Iterator[SparkSession]:
    """Isotherm's Spark session. It is stopped at the end, unless it existed before. After Ctrl+C it
    ends at once. With `is_small` its JVM is started for a short life.

    Errors of Spark and its tasks become Isotherm's errors, and Spark logs nothing. With `isotherm
    pipeline --debug` the error has the trace as its cause, and Spark logs errors. Raises
    ConfigError for an invalid master, and without Java.
    """
    from isotherm.spark.session import session
    from isotherm.spark.small_input import SHORT_JVM_OPTIONS

    master = options.master
    if _MASTERS.fullmatch(master) is None:
        raise ConfigError(
            f"not the address of a Spark cluster key=master value={master!r} hint='local[N],"
            " spark://host:7077, yarn or k8s://https://host'"
        )
    from pyspark.sql import SparkSession

    debug = debugging.get()
    check_master(master)
    config = parse_pairs(options.spark_config)
    exists = SparkSession.getActiveSession() is not None
    # A session that exists keeps its settings, but for those of the command line.
    if master.startswith("local") and not exists:
        config.setdefault(_SHUFFLE_PARTITIONS, str(_SHUFFLE_PARTITIONS_LOCAL))
        if is_small:
            config[_JAVA_OPTIONS] = f"{SHORT_JVM_OPTIONS} {config.get(_JAVA_OPTIONS, '')}".strip()
    if debug:
        config = {_JAVA_TRACE: "true", _PYTHON_TRACE: "false", **config}
    else:
        config[_JAVA_OPTIONS] = f"{_SILENT} {config.get(_JAVA_OPTIONS, '')}".strip()
    if exists:
        with spark_errors(), _failed_queries_logged(debug):
            yield session("isotherm-pipeline", master=master, config=config)
        return
    spark: SparkSession | None = None
    try:
        with own_sigint_handler(), spark_errors():
            with progress("starting Spark"), said_wait(master):
                spark = session("isotherm-pipeline", master=master, config=config)
            # Again: PySpark has installed a handler of its own.
            with own_sigint_handler(), _failed_queries_logged(debug):
                yield spark
    except KeyboardInterrupt:
        end_spark()
        raise
    except BaseException:
        if spark is not None:
            spark.stop()
        raise
    spark.stop()


@contextmanager
def _failed_queries_logged(is_logged: bool) -> Iterator[None]:
    """PySpark logs each refused expression with its trace, before the caller gets the error."""
    from pyspark.logger import PySparkLogger

    if is_logged:
        yield
        return
    loggers = [PySparkLogger.getLogger(name) for name in _FAILED_QUERIES]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, is_disabled in zip(loggers, before, strict=True):
            logger.disabled = is_disabled


@contextmanager
def said_wait(master: str, after_s: float = _MASTER_TIMEOUT_S) -> Iterator[None]:
    """Say within the block that a standalone cluster's master does not answer, once `after_s` have
    passed. It may take connections and say nothing; Spark gives up after a minute."""
    if not master.startswith(_STANDALONE):
        yield
        return
    text = (
        f"isotherm: no answer from the Spark master for {after_s:.0f} s, still waiting"
        f" master={master} hint='Spark gives up after a minute'"
    )
    timer = threading.Timer(after_s, lambda: error_console().print(text, soft_wrap=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def check_master(master: str) -> None:
    """Raise SparkJobError unless one of a standalone cluster's masters takes a connection. Spark
    itself would try for minutes, and print nothing."""
    if not master.startswith(_STANDALONE):
        return
    reasons = []
    for address in master.removeprefix(_STANDALONE).split(","):
        try:
            parts = urlsplit(f"//{address}")
            place = (parts.hostname or "", parts.port or _MASTER_PORT)
        except ValueError as error:
            raise ConfigError(
                f"not the address of a Spark cluster key=master value={master!r} reason='{error}'"
                " hint='spark://HOST:PORT'"
            ) from None
        try:
            socket.create_connection(place, _MASTER_TIMEOUT_S / len(master.split(","))).close()
        except OSError as error:
            reasons.append(error.strerror or "it does not answer")
        else:
            return
    raise SparkJobError(
        f"no Spark master answers key=master value={master!r} reason={'; '.join(reasons)!r}"
    )


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn errors of Spark and its tasks into Isotherm's, as `spark_session` describes. After
    Ctrl+C they become KeyboardInterrupt."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from isotherm.spark.jobs.job_errors import error_of_job

    try:
        yield
    except (PySparkException, Py4JError) as error:
        running = interruption.get()
        if running is not None and running.has_begun:
            # PySpark calls Java while a call that was interrupted ends. If its connection is being
            # closed just then, that error comes in place of the interruption.
            raise KeyboardInterrupt from error
        raise error_of_job(str(error)) from (error if debugging.get() else None)


@contextmanager
def progress(description: str) -> Iterator[Callable[[str], None]]:
    """A line with the elapsed time and the finished tasks. Call the result to name the next step.
    Without a terminal nothing is shown: a failed command prints its one line there."""
    terminal = error_console()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TasksColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal
    ) as line:
        task = line.add_task(description, total=None)
        yield lambda text: line.update(task, description=text)


class TasksColumn(ProgressColumn):
    """The finished tasks of Spark's running stages."""

    # Seconds between two refreshes, since each is a call into Java.
    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        del task
        done, count = tasks_of_running_stages()
        return Text(f"{done} of {count} tasks" if count else "")


def tasks_of_running_stages() -> tuple[int, int]:
    """The numbers of finished tasks and of all tasks.

    Both are 0 before Spark starts and after it stops.
    """
    # Not imported here: the main thread may be importing it.
    context_class = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    if context_class is None:
        return 0, 0
    from py4j.protocol import Py4JError

    context = context_class._active_spark_context
    if context is None:
        return 0, 0
    try:
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
    except Py4JError:
        # Spark is being stopped.
        return 0, 0
    active = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in active), sum(stage.numTasks for stage in active)


def print_frame(
    frame: DataFrame,
    columns: Sequence[str],
    *,
    as_json: bool,
    limit: int = TABLE_ROWS_MAX,
    title: str | None = None,
) -> None:
    """Print the rows of a DataFrame: all of them as JSON, or the first ones as a table. If there
    are more, the table ends with the number of all rows."""
    if as_json:
        for row in frame.toLocalIterator():
            print_json(row.asDict(recursive=True))
        return
    rows: list[dict[str, Any]] = [row.asDict(recursive=True) for row in frame.take(limit + 1)]
    print_rows(columns, [human_row(row) for row in rows[:limit]], as_json=False, title=title)
    if len(rows) > limit:
        console().print(f"\n{limit} of {frame.count()} rows; --json prints them all.")
