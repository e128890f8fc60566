"""`isotherm pipeline sweep`: compares the bucket's objects with the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    AsJson,
    ClientOptions,
)
from isotherm.cli.output import console, dollars, error_console, human_size, print_json
from isotherm.cli.pipeline_bucket import (
    BegunListing,
    MaxBytes,
    begin_listing,
    bucket_metadata,
    finish_listing,
    is_bucket,
    print_cost,
    storage_of,
)
from isotherm.cli.pipeline_metadata import (
    Audit,
    Dump,
    LogDirs,
    MetadataPlace,
    is_small_metadata,
)
from isotherm.cli.pipeline_options import (
    EXIT_FOUND,
    OptionalBootstrapServer,
    SourceOption,
    SparkOptions,
    TierPath,
    job_session,
    print_frame,
    progress,
    spark_session,
)
from isotherm.cli.topic_storage import Price
from isotherm.clock import SystemClock
from isotherm.errors import ConfigError
from isotherm.storage_view.prices import DEFAULT_PRICE, PriceList, monthly_cost, price_list

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.spark.jobs.recheck import MetadataNow
    from isotherm.spark.jobs.sweep import Completeness, SweepReport
    from isotherm.spark.metadata.remote_metadata_log import MetadataLog
    from isotherm.spark.options import SourceOptions

_COLUMNS = ["kind", "topic", "partition", "start_offset", "key", "size", "detail"]
_HOUR_MS = 3_600_000


_Inventory = Annotated[
    str | None,
    typer.Option(
        "--inventory",
        metavar="FILE",
        help="manifest.json of an S3 Inventory (CSV or Parquet), instead of listing the bucket:"
        " a file, or a key in the store.",
    ),
]
_AgeHours = Annotated[
    float,
    typer.Option("--age-hours", min=0, help="Ignore objects that are younger than this."),
]
_Everywhere = Annotated[
    bool,
    typer.Option("--everywhere", help="List the whole store, not only below key.prefix."),
]
_UnknownTopics = Annotated[
    bool,
    typer.Option(
        "--unknown-topics",
        help="Objects of unknown topic ids are deletable too. Do not use it in a bucket that"
        " several clusters share.",
    ),
]
_Delete = Annotated[bool, typer.Option("--delete", help="Move deletable objects to quarantine.")]
_ForGood = Annotated[
    bool, typer.Option("--for-good", help="With --delete: delete for ever, without quarantine.")
]


@with_groups
def sweep(
    *,
    path: TierPath = None,
    bootstrap_server: OptionalBootstrapServer = None,
    log_dir: LogDirs = None,
    dump: Dump = None,
    inventory: _Inventory = None,
    age_hours: _AgeHours = 24.0,
    everywhere: _Everywhere = False,
    unknown_topics: _UnknownTopics = False,
    delete: _Delete = False,
    for_good: _ForGood = False,
    audit: Audit = False,
    price: Price = DEFAULT_PRICE,
    max_bytes: MaxBytes = None,
    as_json: AsJson = False,
    spark_options: SparkOptions,
    client: ClientOptions,
    option: SourceOption = None,
) -> None:
    """Compare the bucket's objects with the metadata: find leftovers, and missing objects.

    The job finds partial uploads, failed copies, unfinished deletions, objects of deleted or
    unknown segments and topics, objects in the wrong place, and objects that finished segments
    lack. Without --delete it only reports. With --delete it copies deletable objects below
    isotherm-quarantine/, verifies the copies and deletes the objects, unless the metadata is not
    known to be complete. Your own RemoteStorageManager (-o
    remote.log.storage.manager.class.name=...) lists and deletes its segments itself.

    isotherm pipeline sweep --path s3://bucket/kafka -b localhost:9092

    Exit codes: 0 clean · 1 failed, or deletion or --max-bytes refused · 2 wrong options · 3
    findings.
    """
    prices = price_list(price)
    _, store = storage_of(path, option, writes=delete)
    _check_goes_with(
        store, inventory=inventory, everywhere=everywhere, moves=delete and not for_good
    )
    properties = client.properties
    place = MetadataPlace(bootstrap_server, properties, log_dir, dump, option)
    log = bucket_metadata(place, audit=audit, max_bytes=max_bytes)
    if log is None:
        raise ConfigError("choose one of --bootstrap-server, --log-dir and --dump")
    if for_good and not delete:
        raise ConfigError("--for-good goes with --delete")
    from isotherm.spark.jobs import recheck
    from isotherm.spark.jobs.deleted_segments import deleted_segments
    from isotherm.spark.jobs.replay import replay
    from isotherm.spark.jobs.sweep import SweepSettings, spared_segments
    from isotherm.spark.jobs.sweep import sweep as run

    with ExitStack() as kept:
        at_ms = SystemClock().now_ms()
        begun = _begin_listing(spark_options, store, log, inventory, everywhere=everywhere)
        is_small = begun.is_small
        spark = kept.enter_context(spark_session(spark_options, is_small=is_small))
        spark = job_session(spark, spark_options, is_small=is_small)
        with progress("listing the bucket") as show_step:
            listing, at_ms = _finish_listing(spark, store, begun, inventory, at_ms, as_json=as_json)
            if not is_small:
                # Persisted before the metadata is read: sweep.py explains why the order matters.
                listing = listing.persist()
                listing.count()
                kept.callback(listing.unpersist)
            show_step("reading metadata")
            replayed = kept.enter_context(replay(spark, log))
            completeness = _completeness(replayed.findings, bootstrap_server, properties)
            if is_bucket(store):
                _print_cost_of_sizes(listing, replayed.segments, store, max_bytes, as_json=as_json)
            show_step("comparing objects and metadata")
            age_ms = int(age_hours * _HOUR_MS)
            # Only buckets in a built-in layout have compactions in progress.
            spared = spared_segments(store) if is_bucket(store) else ()
            settings = SweepSettings(at_ms, age_ms, unknown_topics, spared)
            report = run(
                listing, replayed.segments, store, settings, completeness,
                lambda: deleted_segments(spark, log),
            )  # fmt: skip
        kept.callback(report.close)
        count = _print_report(report, prices, as_json=as_json)
        if delete:
            again = kept.enter_context(replay(spark, log))
            audited = bucket_metadata(place, audit=True)
            assert audited is not None, "the same place as the metadata's"
            finished_last = recheck.segments_finished_last(audited)
            now = recheck.MetadataNow(again.segments, finished_last)
            _take_away(report, store, now, None if for_good else at_ms, as_json=as_json)
    if count or report.refusals:
        raise typer.Exit(EXIT_FOUND)


def _check_goes_with(
    store: ObjectStoreSettings | SourceOptions,
    *,
    inventory: str | None,
    everywhere: bool,
    moves: bool,
) -> None:
    """Raise ConfigError for options that do not work with a user's RemoteStorageManager."""
    if is_bucket(store):
        return
    if inventory is not None or everywhere:
        raise ConfigError(
            "--inventory and --everywhere are for the built-in layouts: a storage manager of your"
            f" own lists its segments itself value={store.storage_manager}"
        )
    if moves:
        raise ConfigError(
            "a storage manager of your own has no quarantine: it deletes segments for ever"
            f" value={store.storage_manager} hint='--delete --for-good, after a look at the report'"
        )


class _BegunListing(NamedTuple):
    """A listing before Spark starts. `users` has the segments of a user's RemoteStorageManager. An
    inventory has neither: Spark's tasks read it."""

    is_small: bool
    bucket: BegunListing | None = None
    users: pa.Table | None = None


def _begin_listing(
    options: SparkOptions,
    store: ObjectStoreSettings | SourceOptions,
    log: MetadataLog,
    inventory: str | None,
    *,
    everywhere: bool,
) -> _BegunListing:
    from isotherm.spark.jobs.users_segments import list_users_segments
    from isotherm.spark.small_input import SMALL_INPUT_ROWS_MAX

    if inventory is not None:
        # Inventories are made of large buckets.
        return _BegunListing(is_small=False)
    is_small = is_small_metadata(options, log)
    if is_bucket(store):
        begun = begin_listing(store, everywhere=everywhere, may_be_small=is_small)
        return _BegunListing(begun.small is not None, bucket=begun)
    users = list_users_segments(store)
    return _BegunListing(is_small and users.num_rows <= SMALL_INPUT_ROWS_MAX, users=users)


def _finish_listing(
    spark: SparkSession,
    store: ObjectStoreSettings | SourceOptions,
    begun: _BegunListing,
    inventory: str | None,
    at_ms: int,
    *,
    as_json: bool,
) -> tuple[DataFrame, int]:
    """The listing (bucket_listing), and its time: that of an inventory, or `at_ms`."""
    from isotherm.spark.jobs.s3_inventory import list_from_inventory, read_inventory_manifest
    from isotherm.spark.table_frame import table_frame

    if begun.users is not None:
        return table_frame(spark, begun.users), at_ms
    assert is_bucket(store), "a user's RemoteStorageManager has listed its segments"
    if begun.bucket is not None:
        return finish_listing(spark, store, begun.bucket, as_json=as_json), at_ms
    assert inventory is not None, "all other listings have begun"
    manifest = read_inventory_manifest(store, inventory)
    return list_from_inventory(spark, store, manifest), manifest.created_ms


def _print_cost_of_sizes(
    listing: DataFrame,
    segments: DataFrame,
    store: ObjectStoreSettings,
    max_bytes: int | None,
    *,
    as_json: bool,
) -> None:
    """Print the cost of the manifests that the sizes of compressed or encrypted logs need, before
    they are read."""
    from isotherm.spark.jobs.cost import check_cost
    from isotherm.spark.jobs.sweep import asks_manifests, cost_of_sizes

    if asks_manifests(store):
        cost = cost_of_sizes(listing, segments, store)
        print_cost(cost, as_json=as_json)
        check_cost(cost, max_bytes)


def _completeness(
    findings: DataFrame, bootstrap_server: str | None, client: Mapping[str, str]
) -> Completeness:
    from isotherm.spark.jobs.sweep import Completeness, cluster_topics

    problems = tuple(
        f"metadata is not complete: {row['kind']} metadata_partition={row['metadata_partition']}"
        f" offset={row['offset']}: {row['text']}"
        for row in findings.limit(10).collect()
    )
    if bootstrap_server is None:
        return Completeness(problems)
    properties = {"bootstrap.servers": bootstrap_server, **client}
    return Completeness(problems, cluster_topics(properties))


def _print_report(report: SweepReport, prices: PriceList, *, as_json: bool) -> int:
    from pyspark.sql import functions as sql

    findings = report.findings.orderBy("kind", "topic", "partition", "start_offset", "key")
    sums = report.findings.groupBy("kind").agg(sql.count(sql.lit(1)), sql.sum("size"))
    counts = {kind: (number, size or 0) for kind, number, size in sums.collect()}
    count = sum(int(number) for number, _ in counts.values())
    left_over = _left_over(report, prices)
    if count:
        print_frame(findings, _COLUMNS, as_json=as_json)
    if as_json:
        print_json({"swept": {"objects": report.objects, "findings": count, **left_over}})
    else:
        counted = ", ".join(
            f"{number} {kind} ({human_size(size)})"
            for kind, (number, size) in sorted(counts.items())
        )
        console().print(f"\n{report.objects} objects; findings: {counted or 'none'}.")
        if left_over["orphaned_objects"]:
            console().print(
                f"Deletable: {left_over['orphaned_objects']} objects,"
                f" {human_size(left_over['orphaned_bytes'])},"
                f" {dollars(left_over['cost_per_month'])} a month."
            )
    for refusal in report.refusals:
        error_console().print(f"isotherm: {refusal}", soft_wrap=True)
    return count


def _left_over(report: SweepReport, prices: PriceList) -> dict[str, Any]:
    """The count and bytes of deletable objects, and their monthly cost."""
    from pyspark.sql import functions as sql

    deletable = report.findings.where("is_deletable")
    ((number, size),) = deletable.agg(sql.count(sql.lit(1)), sql.sum("size")).collect()
    size_in_bytes = int(size or 0)
    return {
        "orphaned_objects": int(number),
        "orphaned_bytes": size_in_bytes,
        "cost_per_month": round(monthly_cost(size_in_bytes, prices.mean_price(size_in_bytes)), 12),
    }


def _take_away(
    report: SweepReport,
    store: ObjectStoreSettings | SourceOptions,
    now: MetadataNow,
    at_ms: int | None,
    *,
    as_json: bool,
) -> None:
    """Move the objects into the quarantine of that time. With None delete them permanently."""
    from isotherm.spark.jobs.quarantine import (
        delete_users_segments,
        quarantine_prefix,
        take_away,
    )

    prefix = None if at_ms is None else quarantine_prefix(at_ms)
    with progress("moving objects" if prefix else "deleting objects"):
        if is_bucket(store):
            moved = take_away(report, store, now, prefix=prefix)
        else:
            moved = delete_users_segments(report, store, now)
    if as_json:
        print_frame(moved, [], as_json=True)
        return
    for outcome, number in sorted(
        (row["outcome"], row["count"]) for row in moved.groupBy("outcome").count().collect()
    ):
        console().print(f"{number} objects: {outcome}")
