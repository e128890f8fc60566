"""`isotherm pipeline scrub`: deep check of the data in a bucket."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import AsJson, ClientOptions
from isotherm.cli.output import console, human_size, print_json
from isotherm.cli.pipeline_bucket import (
    BegunListing,
    DryRun,
    MaxBytes,
    begin_listing,
    bucket_metadata,
    is_bucket,
    listed_objects,
    listed_segments,
    print_cost,
    share_of,
    storage_of,
    topics_chosen,
)
from isotherm.cli.pipeline_metadata import (
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
    may_be_small,
    print_frame,
    progress,
    spark_session,
)
from isotherm.cli.pipeline_replay import print_findings
from isotherm.errors import UnknownTopicOrPartitionError
from isotherm.remote.scrub.findings import LEFTOVERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.spark.metadata.remote_metadata_log import MetadataLog
    from isotherm.spark.options import SourceOptions

_COLUMNS = ["kind", "topic", "partition", "start_offset", "segment_id", "detail"]


_Sample = Annotated[
    str,
    typer.Option(
        "--sample", metavar="SHARE", help="Read only this share of the segments: 0.05 or 5%."
    ),
]
_Seed = Annotated[
    int, typer.Option("--seed", help="Chooses the sample: another number gives another sample.")
]
_Compacted = Annotated[
    bool,
    typer.Option("--compacted", help="The topics are compacted: missing offsets are not damage."),
]
_Records = Annotated[
    bool,
    typer.Option(
        "--records/--no-records",
        help="Decompress and parse every record, or check only the CRC of each batch.",
    ),
]


@with_groups
def scrub(
    *,
    path: TierPath = None,
    bootstrap_server: OptionalBootstrapServer = None,
    log_dir: LogDirs = None,
    dump: Dump = None,
    sample: _Sample = "1",
    seed: _Seed = 0,
    compacted: _Compacted = False,
    records: _Records = True,
    max_bytes: MaxBytes = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    spark_options: SparkOptions,
    client: ClientOptions,
    option: SourceOption = None,
) -> None:
    """Read segments in the bucket and check every batch, every record and every index entry.

    The job checks CRCs, offsets and leader epochs of batches, and their records. It compares
    offset, time and transaction index, producer snapshot and epoch checkpoint with the log, and
    with the transactions that were open at the end of the segment before. It compares manifest and
    objects with the metadata, and finds gaps between segments. The segments come from the metadata
    topic, or without one from the bucket's manifests. The cost is printed first. -o
    subscribe=flights limits the job to a topic. With -o remote.log.storage.manager.class.name=...
    segments are read through your own RemoteStorageManager, which also lists them if no metadata
    topic is named.

    isotherm pipeline scrub --path s3://bucket/kafka -b localhost:9092 --sample 5%

    Exit codes: 0 clean, or only leftovers (segments whose offsets other segments hold) ·
    1 failed, refused by --max-bytes, or a topic that -o names has no segment · 2 wrong options ·
    3 damage.
    """
    options, store = storage_of(path, option)
    properties = client.properties
    log = bucket_metadata(MetadataPlace(bootstrap_server, properties, log_dir, dump, option))
    from isotherm.spark.jobs.cost import check_cost
    from isotherm.spark.jobs.scrub import ScrubSettings, scrub_cost
    from isotherm.spark.jobs.scrub import scrub as run

    settings = ScrubSettings(share_of(sample), seed, may_have_gaps=compacted, with_records=records)
    with ExitStack() as kept:
        begun = None
        if log is not None:
            is_small = is_small_metadata(spark_options, log)
        elif is_bucket(store):
            begun = begin_listing(store, everywhere=False, may_be_small=may_be_small(spark_options))
            is_small = begun.small is not None
        else:
            is_small = False
        spark = kept.enter_context(spark_session(spark_options, is_small=is_small))
        spark = job_session(spark, spark_options, is_small=is_small)
        with progress("listing segments"):
            segments, damage, listing_findings = _segments(kept, spark, store, log, begun)
            check_topics = _topics_check(segments, options.named_topics)
            segments = segments.where(topics_chosen(options))
            cost = scrub_cost(segments, settings)
        print_cost(cost, as_json=as_json)
        check_cost(cost, max_bytes)
        if dry_run:
            check_topics()
            return
        with progress("reading segments"):
            report = run(segments, store, settings)
        kept.callback(report.close)
        findings = report.findings if damage is None else report.findings.unionByName(damage)
        ordered = findings.orderBy("topic", "partition", "start_offset", "kind")
        counts = {row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()}
        count = sum(counts.values())
        leftovers = sum(counts.get(kind.value, 0) for kind in LEFTOVERS)
        if count:
            print_frame(ordered, _COLUMNS, as_json=as_json)
        totals = {
            "segments": report.segments,
            "batches": report.batches,
            "bytes": report.bytes_read,
            "findings": count,
            "damage": count - leftovers,
            "leftovers": leftovers,
        }
        if as_json:
            print_json({"scrubbed": totals})
        else:
            console().print(
                f"\n{report.segments} segments, {report.batches} batches,"
                f" {human_size(report.bytes_read)} read; {count} findings:"
                f" {count - leftovers} of damage, {leftovers} of leftovers."
            )
    if print_findings(listing_findings, as_json=as_json) or count > leftovers:
        raise typer.Exit(EXIT_FOUND)
    check_topics()


def _topics_check(segments: DataFrame, named: Collection[str]) -> Callable[[], None]:
    """A function that raises UnknownTopicOrPartitionError if a named topic has no segment: a
    mistyped name is not clean."""
    topics = (
        [row["topic"] for row in segments.select("topic").distinct().collect()] if named else []
    )
    missing = sorted(set(named) - set(topics))

    def check() -> None:
        if missing:
            nearest = difflib.get_close_matches(missing[0], topics, n=1)
            hint = f" nearest={nearest[0]}" if nearest else ""
            raise UnknownTopicOrPartitionError(
                f"there is no segment of a topic that is named topics={','.join(missing)}{hint}"
            )

    return check


def _segments(
    kept: ExitStack,
    spark: SparkSession,
    store: ObjectStoreSettings | SourceOptions,
    log: MetadataLog | None,
    begun: BegunListing | None,
) -> tuple[DataFrame, DataFrame | None, list[dict[str, Any]]]:
    """The segments, and the findings of their source: about damaged manifests, or about the
    metadata topic."""
    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.spark.jobs.manifests import read_manifests
    from isotherm.spark.jobs.replay import replay

    if log is not None:
        replayed = kept.enter_context(replay(spark, log))
        return replayed.segments, None, [row.asDict() for row in replayed.findings.collect()]
    if not isinstance(store, ObjectStoreSettings):
        return listed_segments(spark, store), None, []
    assert begun is not None, "the caller has begun to list the bucket"
    listing = listed_objects(spark, store, begun)
    manifests = read_manifests(listing, store)
    kept.callback(manifests.rows.unpersist)
    return manifests.segments, manifests.findings, []
