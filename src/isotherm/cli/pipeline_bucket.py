"""Common code of the jobs over a bucket: its settings, metadata, and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from isotherm.cli.options import parse_pairs
from isotherm.cli.output import console, human_size, print_json
from isotherm.cli.pipeline_metadata import DEFAULT_TOPIC, MetadataPlace, metadata_log
from isotherm.cli.pipeline_options import progress, source_texts
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from typing_extensions import TypeIs

    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.spark.jobs.bucket_listing import ListingPlan
    from isotherm.spark.jobs.cost import Cost
    from isotherm.spark.metadata.remote_metadata_log import MetadataLog
    from isotherm.spark.options import SourceOptions

MaxBytes = Annotated[
    int | None, typer.Option("--max-bytes", min=0, help="Refuse to read more bytes than this.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the cost, and read no data.")]


def bucket(
    path: str | None, option: list[str] | None, *, writes: bool = False
) -> tuple[SourceOptions, ObjectStoreSettings]:
    """The options of the source, and their store, after a test request to it: a read, or with
    `writes` a write. Brokers are not needed."""
    from isotherm.remote.storage.store_check import check_store
    from isotherm.spark.option_parsing import parse_options
    from isotherm.spark.tier.tier_settings import named_store, tier_settings

    options = parse_options(source_texts(path, option, None, {}))
    check_store(named_store(options), writes=writes)
    return options, tier_settings(options)


def storage_of(
    path: str | None, option: list[str] | None, *, writes: bool = False
) -> tuple[SourceOptions, ObjectStoreSettings | SourceOptions]:
    """As `bucket`. If the options name a user's RemoteStorageManager, the second item is the
    options again. The manager is created here once, so that an unusable one fails before the job
    starts."""
    from isotherm.spark.option_parsing import parse_options
    from isotherm.spark.tier.storage import open_users_storage

    options = parse_options(source_texts(path, option, None, {}))
    if options.storage_manager is None:
        return bucket(path, option, writes=writes)
    open_users_storage(options)
    return options, options


def listed_segments(spark: SparkSession, options: SourceOptions) -> DataFrame:
    """The rows (segment_frames) of the segments that a user's RemoteStorageManager lists, finished
    or not. Raises UnsupportedVersionError if it cannot list them."""
    from isotherm.spark.metadata.segment_frames import segment_frame
    from isotherm.spark.tier.storage import open_users_storage

    return segment_frame(spark, open_users_storage(options).list_log_segments())


def bucket_metadata(
    place: MetadataPlace, *, audit: bool = False, max_bytes: int | None = None
) -> MetadataLog | None:
    """The metadata log at a place, whose store options are the bucket's. If the options name none,
    the result is None, and the job reads the bucket's manifests. Raises PolicyViolationError for a
    log of more than `max_bytes`."""
    if not place.is_named:
        return None
    from isotherm.spark.option_parsing import KEY_PAIRS
    from isotherm.spark.options import STORAGE_SETTINGS

    # The bucket's store settings also apply to a dump in a bucket, except key pairs: segments may
    # be encrypted, but metadata is not.
    of_store = [
        f"{name}={value}"
        for name, value in parse_pairs(place.store_option).items()
        if name.lower() in STORAGE_SETTINGS and name.lower() != KEY_PAIRS
    ]
    place = place._replace(store_option=of_store)
    return metadata_log(place, DEFAULT_TOPIC, audit=audit, max_bytes=max_bytes)


def print_cost(cost: Cost, *, as_json: bool) -> None:
    """Print the cost, before the job reads anything."""
    if as_json:
        print_json({"cost": cost.as_row()})
        return
    requests = ", ".join(
        f"{number} {name}"
        for name, number in (("GET", cost.gets), ("LIST", cost.lists), ("HEAD", cost.heads))
        if number
    )
    console().print(
        f"Cost: {requests or 'no requests'}, {human_size(cost.bytes_read)},"
        f" about {cost.seconds():.0f} s in {cost.tasks} tasks."
    )


class BegunListing(NamedTuple):
    """A listing before Spark starts: its folders, and of a small bucket the objects, which the
    driver has listed."""

    plan: ListingPlan
    small: pa.Table | None


def begin_listing(
    store: ObjectStoreSettings, *, everywhere: bool, may_be_small: bool
) -> BegunListing:
    from isotherm.spark.jobs.bucket_listing import list_small_bucket, plan_listing

    with progress("listing the bucket"):
        plan = plan_listing(store, everywhere=everywhere)
        return BegunListing(plan, list_small_bucket(store, plan) if may_be_small else None)


def finish_listing(
    spark: SparkSession, store: ObjectStoreSettings, begun: BegunListing, *, as_json: bool
) -> DataFrame:
    """The bucket's objects (bucket_listing). Prints the cost of the LIST requests before Spark's
    tasks send them."""
    from isotherm.spark.jobs.cost import cost_of_listing, parallel_tasks

    tasks = parallel_tasks(spark) if begun.small is None else 1
    print_cost(cost_of_listing(0, len(begun.plan.directories), tasks), as_json=as_json)
    return listed_objects(spark, store, begun)


def listed_objects(
    spark: SparkSession, store: ObjectStoreSettings, begun: BegunListing
) -> DataFrame:
    from isotherm.spark.jobs.bucket_listing import LISTING_ARROW, list_bucket
    from isotherm.spark.small_input import local_frame

    if begun.small is not None:
        return local_frame(spark, begun.small.to_batches(), LISTING_ARROW)
    return list_bucket(spark, store, begun.plan)


def topics_chosen(options: SourceOptions) -> Column:
    """A filter for rows of the topics in the options."""
    from pyspark.sql import functions as sql

    if options.subscribe_pattern is not None:
        # Java finds the expression in the name, as `SourceOptions.selects_topic` does.
        return sql.col("topic").rlike(options.subscribe_pattern)
    return sql.col("topic").isin(sorted(options.named_topics))


def share_of(text: str) -> float:
    """Parse a share such as `0.05` or `5%`."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ConfigError(f"not a share value={text!r} hint='0.05 or 5%'") from None


def is_bucket(store: ObjectStoreSettings | SourceOptions) -> TypeIs[ObjectStoreSettings]:
    """Whether `storage_of` found a bucket in a built-in layout, not a user's
    RemoteStorageManager.
    """
    from isotherm.remote.storage.settings import ObjectStoreSettings

    return isinstance(store, ObjectStoreSettings)
