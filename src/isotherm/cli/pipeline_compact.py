"""`isotherm pipeline compact`: compacts a tiered topic by key, in place or as a copy."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    AsJson,
    ClientOptions,
    parse_pairs,
)
from isotherm.cli.output import console, error_console, human_size, print_json, print_rows
from isotherm.cli.pipeline_bucket import MaxBytes
from isotherm.cli.pipeline_options import (
    EXIT_FOUND,
    OptionalBootstrapServer,
    SourceOption,
    SparkOptions,
    TierPath,
    progress,
    source_texts,
    spark_session,
)
from isotherm.cli.pipeline_recovery import Recover, show_recovery
from isotherm.clock import Clock, SystemClock
from isotherm.errors import RequestTimedOutError

if TYPE_CHECKING:
    from isotherm.spark.jobs.compact import CompactionSettings, PartitionReport
    from isotherm.spark.jobs.compact_plan import CompactionPlan
    from isotherm.spark.jobs.cost import Cost

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
_LOOK_INTERVAL_S = 1.0


To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="URL",
        help="Write a compacted copy to this place, and leave the source unchanged. Without --to"
        " and --to-option the topic is compacted in place.",
    ),
]
ToOption = Annotated[
    list[str] | None,
    typer.Option(
        "--to-option",
        metavar="KEY=VALUE",
        help="A storage setting of the copy, such as key.prefix=compacted/. Other settings are"
        " those of the source. May be given many times.",
    ),
]
Run = Annotated[
    bool, typer.Option("--run", help="Compact. Without it the plan and its cost are shown.")
]
DeleteRetentionMs = Annotated[
    int,
    typer.Option(
        min=0, help="delete.retention.ms: the time that a tombstone stays after its compaction."
    ),
]
KeepOldMs = Annotated[
    int,
    typer.Option(
        min=0,
        help="In place: the time that old segments stay after they are superseded, for readers that"
        " have planned with them.",
    ),
]
WaitS = Annotated[
    int,
    typer.Option(
        min=0, help="In place: seconds to wait until the broker has published the new segments."
    ),
]


@with_groups
def compact(
    *,
    path: TierPath = None,
    bootstrap_server: OptionalBootstrapServer = None,
    to: To = None,
    to_option: ToOption = None,
    run: Run = False,
    recover: Recover = False,
    delete_retention_ms: DeleteRetentionMs = _DAY_MS,
    keep_old_ms: KeepOldMs = _HOUR_MS,
    wait_s: WaitS = 0,
    max_bytes: MaxBytes = None,
    option: SourceOption = None,
    client: ClientOptions,
    spark_options: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Keep the newest record of each key of a tiered topic, over its whole history.

    Tombstones, transactions, offsets, timestamps and headers become as Kafka's log cleaner leaves
    them. A topic of Isotherm is compacted in place: the job stages segments, and the broker
    publishes them. With --to the job makes a copy, also of a Kafka cluster's bucket, and of
    segments of your own RemoteStorageManager (-o remote.log.storage.manager.class.name=...).
    Nothing is written without --run.

    isotherm pipeline compact --path s3://bucket/kafka -o subscribe=prices --to s3://bucket/newest

    Exit codes: 0 done · 1 failed, or refused by --max-bytes · 2 wrong options · 3 damage.
    """
    from isotherm.remote.storage.store_check import check_store
    from isotherm.spark.jobs import compact as job
    from isotherm.spark.jobs import rewrite_run
    from isotherm.spark.jobs.cost import check_cost
    from isotherm.spark.option_parsing import parse_options

    properties = client.properties
    options = parse_options(source_texts(path, option, bootstrap_server, properties))
    clock = SystemClock()
    settings = job.settings_of(
        options,
        now_ms=clock.now_ms(),
        delete_retention_ms=delete_retention_ms,
        keep_old_ms=keep_old_ms,
        to_url=to,
        to_storage=parse_pairs(to_option),
    )
    rewrite_run.check_settings(settings, options)
    if settings.bucket is not None:
        check_store(settings.bucket, writes=run and settings.in_place)
    if settings.target is not None:
        check_store(settings.target, writes=run)
    if recover:
        show_recovery(
            settings,
            options,
            run=run,
            as_json=as_json,
            noun="compaction",
            hint="\n--recover --run does it; no compaction may still be running",
        )
        return
    with progress("reading metadata"):
        plan = job.read_plan(options, settings)
    with spark_session(spark_options) as spark:
        cost = job.cost_of(spark, plan, settings)
        check_cost(cost, max_bytes)
        if not run:
            _print_plan(plan, cost, as_json=as_json)
            _print_unproven(plan)
            return
        with progress("compacting segments") as show_step:
            reports = job.compact(spark, plan, settings, show_step)
    _print_reports(reports, as_json=as_json)
    if settings.target is None:
        _wait_for_broker(plan, settings, wait_s, clock)
    _print_unproven(plan)


def _print_plan(plan: CompactionPlan, cost: Cost, *, as_json: bool) -> None:
    from isotherm.spark.jobs.compact import report

    rows = [partition.as_row() for partition in report(plan, [])]
    shown = ("topic", "partition", "segments", "uncleanable", "bytes")
    if as_json:
        print_json(
            {"cost": cost.as_row(), "partitions": [{k: row[k] for k in shown} for row in rows]}
        )
        return
    print_rows(shown, rows, as_json=False)
    console().print(
        f"\nwould read {human_size(cost.bytes_read)} in {cost.gets} GETs and store {cost.puts}"
        f" objects at most, in about {cost.seconds():.0f} s; --run does it"
    )


def _print_reports(reports: list[PartitionReport], *, as_json: bool) -> None:
    columns = (
        "topic", "partition", "segments", "changed", "uncleanable",
        "records_before", "records_after", "bytes_before", "bytes_after",
    )  # fmt: skip
    print_rows(columns, [partition.as_row() for partition in reports], as_json=as_json)


def _print_unproven(plan: CompactionPlan) -> None:
    """Name the partitions that were left as they are because of damage.

    Then the command ends with exit code 3.
    """
    for partition, error in plan.unproven.items():
        error_console().print(
            f"the partition is not compacted partition={partition} cause='{error}'",
        )
    if plan.unproven:
        raise typer.Exit(EXIT_FOUND)


def _wait_for_broker(
    plan: CompactionPlan, settings: CompactionSettings, wait_s: int, clock: Clock
) -> None:
    """Wait until the broker has published the runs. Raises RequestTimedOutError after the time
    limit. The broker publishes them even after that."""
    from isotherm.spark.jobs.rewrite_run import unpublished_runs

    deadline_s = clock.monotonic_s() + wait_s
    never = threading.Event()
    while waiting := unpublished_runs(settings, plan.partitions):
        if clock.monotonic_s() >= deadline_s:
            if wait_s:
                raise RequestTimedOutError(
                    f"the broker has not published yet run={waiting[0].run} waited_s={wait_s}"
                )
            error_console().print("the broker publishes the staged segments at its next check")
            return
        clock.wait(never, _LOOK_INTERVAL_S)
