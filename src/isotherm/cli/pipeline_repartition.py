"""`isotherm pipeline repartition`: copies a topic into a new one with other partitions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import AsJson, ClientOptions
from isotherm.cli.output import console, print_json, print_rows
from isotherm.cli.pipeline_load import (
    WAIT_S_DEFAULT,
    BatchSize,
    Compression,
    PartitionerOption,
    Run,
    SegmentBytes,
    WaitS,
    options_of,
    print_reports,
    settings_of,
)
from isotherm.cli.pipeline_options import (
    OptionalBootstrapServer,
    SourceOption,
    SparkOptions,
    TierPath,
    progress,
    source_texts,
    spark_session,
)
from isotherm.clock import SystemClock
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from isotherm.spark.jobs.repartition import OldRange

Old = Annotated[str, typer.Argument(metavar="OLD", help="The topic to copy.")]
New = Annotated[str, typer.Argument(metavar="NEW", help="The new topic: tiered, without records.")]
Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions", min=1, help="Create NEW with so many partitions unless it exists."
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--groups",
        metavar="GROUP",
        help="A group whose committed offsets of OLD are translated, and with --run committed for"
        " NEW. May be given many times. Its members must be stopped.",
    ),
]
Follows = Annotated[
    str | None,
    typer.Option(
        "--from-offsets",
        metavar="JSON",
        help="The end of the last run, as it printed it: only what has arrived since is copied,"
        " and appended.",
    ),
]


@with_groups
def repartition(
    old: Old,
    new: New,
    *,
    partitions: Partitions = None,
    groups: Groups = None,
    from_offsets: Follows = None,
    path: TierPath = None,
    bootstrap_server: OptionalBootstrapServer = None,
    partitioner: PartitionerOption = "murmur2",
    compression: Compression = None,
    batch_size: BatchSize = None,
    segment_bytes: SegmentBytes = None,
    run: Run = False,
    wait_s: WaitS = WAIT_S_DEFAULT,
    option: SourceOption = None,
    client: ClientOptions,
    spark_options: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Copy a topic's records into the history of a new topic with another number of partitions.

    Records of one key keep their order, timestamps and headers stay. The committed records of OLD
    are read from the bucket, and the last ones from its brokers. The records are written into the
    bucket of NEW, and its broker adopts them. Until producers are switched, runs with
    --from-offsets copy what has arrived since. Nothing is written without --run.

    isotherm pipeline repartition old new --partitions 24 -b broker:9092 --path s3://bucket --run

    Exit codes: 0 done · 1 failed or refused · 2 wrong options.
    """
    from isotherm.spark.jobs import load as load_job
    from isotherm.spark.jobs import repartition as job
    from isotherm.spark.jobs.load_passes import RANGE_BYTES
    from isotherm.spark.jobs.moved_offsets import (
        TranslatedOffset,
        moved_rules,
        translated_offsets,
    )
    from isotherm.spark.option_parsing import parse_options
    from isotherm.spark.plan.offsets import parse_partition_offsets
    from isotherm.spark.tier.open_log import open_brokers

    if old == new:
        raise ConfigError(f"a topic cannot be copied into itself topic={old}")
    options = options_of(new, path, option, bootstrap_server, client)
    texts = source_texts(path, option, bootstrap_server, client.properties)
    texts.pop("subscribePattern", None)
    brokers = open_brokers(parse_options({**texts, "subscribe": old}))
    if brokers is None:
        raise ConfigError("the cluster is not named hint='name it with --bootstrap-server'")
    starts = {}
    if from_offsets is not None:
        parsed = parse_partition_offsets(from_offsets, "--from-offsets")
        starts = {place.partition: offset for place, offset in parsed.items() if place.topic == old}
    with progress("reading the topics"):
        owners = brokers.partitions([old])
        bounds = brokers.bounds([owner.topic_partition for owner in owners])
        ranges = job.old_ranges({each.partition: found for each, found in bounds.items()}, starts)
        if not run:
            _print_ranges(old, ranges, as_json=as_json)
            return
        if partitions is not None:
            brokers.create_topic(new, partitions, brokers.own_topic_config(old))
        committed = {group: brokers.committed_offsets(group, old) for group in groups or ()}
    if starts:
        job.check_groups_follow(committed, ranges)
    settings = replace(
        settings_of(
            partitioner, None, compression, batch_size, segment_bytes, appends=bool(starts)
        ),
        may_expire=True,
    )
    with progress("reading the topic"):
        target = load_job.open_target(options, new, settings)
    with spark_session(spark_options) as spark, progress("reading records") as show_step:
        rows = job.old_rows(spark, texts, old, ranges)
        with load_job.planned(rows, target, settings) as plan:
            rules = moved_rules(job.old_count(ranges), committed, RANGE_BYTES)
            loaded = load_job.load(
                plan,
                show_step,
                fetch_bytes=options.fetch_bytes,
                moved=rules if committed else None,
            )
    translated = translated_offsets(loaded.moved, committed, target.ends)
    with progress("waiting for the broker to adopt the history"):
        load_job.await_adoption(target.store, list(target.ends), wait_s, SystemClock())
    # Last: a group must not be sent to records that are not there yet.
    for group in committed:
        offsets = {each.partition: each.offset for each in translated if each.group == group}
        brokers.commit_offsets(group, new, offsets)
    ends = json.dumps({old: {str(old_range.partition): old_range.end for old_range in ranges}})
    if as_json:
        print_json(
            {
                "partitions": [report.as_row() for report in loaded.reports],
                "groups": [each._asdict() for each in translated],
                "ended_at": json.loads(ends),
            }
        )
        return
    print_reports(loaded.reports, run=True, as_json=False)
    if translated:
        print_rows(TranslatedOffset._fields, [each._asdict() for each in translated], as_json=False)
    console().print(f"\nwhat arrives from now on: --from-offsets '{ends}'", soft_wrap=True)


def _print_ranges(topic: str, ranges: list[OldRange], *, as_json: bool) -> None:
    rows = [
        {"topic": topic, **old_range._asdict(), "records_at_most": old_range.end - old_range.start}
        for old_range in ranges
    ]
    print_rows(("topic", "partition", "start", "end", "records_at_most"), rows, as_json=as_json)
    if not as_json:
        console().print("\nwould copy these offsets; --run does it")
