"""`isotherm pipeline replay`: the state of every remote segment at any point of history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import AsJson, ClientOptions
from isotherm.cli.output import console, error_console, print_json
from isotherm.cli.pipeline_bucket import MaxBytes
from isotherm.cli.pipeline_metadata import (
    DEFAULT_TOPIC,
    AsOfOffsets,
    AsOfTime,
    Audit,
    Dump,
    LogDirs,
    MetadataPlace,
    MetadataTopicName,
    StoreOption,
    as_of,
    check_store_options,
    is_small_metadata,
    metadata_log,
)
from isotherm.cli.pipeline_options import (
    EXIT_FOUND,
    OptionalBootstrapServer,
    SparkOptions,
    job_session,
    print_frame,
    progress,
    spark_session,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

SEGMENT_COLUMNS = [
    "topic", "partition", "start_offset", "end_offset", "state", "size_in_bytes", "segment_id",
    "metadata_partition", "source_offset",
]  # fmt: skip
_FINDINGS_SHOWN = 20


@with_groups
def replay(
    *,
    bootstrap_server: OptionalBootstrapServer = None,
    log_dir: LogDirs = None,
    dump: Dump = None,
    audit: Audit = False,
    topic: MetadataTopicName = DEFAULT_TOPIC,
    as_of_time: AsOfTime = None,
    as_of_offsets: AsOfOffsets = None,
    of_topic: Annotated[
        str | None, typer.Option("--of", metavar="TOPIC", help="Only segments of this topic.")
    ] = None,
    spread: Annotated[
        bool,
        typer.Option(
            "--spread",
            help="Split each partition of the metadata topic over several tasks: for large"
            " partitions, on a cluster with idle cores.",
        ),
    ] = False,
    max_bytes: MaxBytes = None,
    as_json: AsJson = False,
    spark_options: SparkOptions,
    client: ClientOptions,
    option: StoreOption = None,
) -> None:
    """Fold the metadata topic to the state of every live segment, now or at a point in the past.

    The topic is never written to. Each problem of the topic (a head that retention has cut off,
    damaged records, partitions of another topic) becomes one line on standard error.

    isotherm pipeline replay -b localhost:9092 --as-of 2026-03-01T00:00:00Z

    isotherm pipeline replay --log-dir /var/lib/kafka/data --of flights --json

    Exit codes: 0 clean · 1 failed · 2 wrong options · 3 damage of the topic.
    """
    properties = client.properties
    place = MetadataPlace(bootstrap_server, properties, log_dir, dump, option)
    check_store_options(place)
    log = metadata_log(place, topic, audit=audit, max_bytes=max_bytes)
    point = as_of(as_of_time, as_of_offsets)
    from isotherm.spark.jobs.replay import replay as run

    is_small = is_small_metadata(spark_options, log)
    with (
        spark_session(spark_options, is_small=is_small) as spark,
        run(
            job_session(spark, spark_options, is_small=is_small), log, as_of=point, spread=spread
        ) as replayed,
    ):
        with progress("reading metadata"):
            findings = [row.asDict() for row in replayed.findings.collect()]
        segments = replayed.segments.orderBy("topic", "topic_id", "partition", "start_offset")
        if of_topic is not None:
            segments = segments.where(segments.topic == of_topic)
        print_frame(segments, SEGMENT_COLUMNS, as_json=as_json)
        if not as_json:
            _print_states(segments, replayed.records())
    if print_findings(findings, as_json=as_json):
        raise typer.Exit(EXIT_FOUND)


def print_findings(findings: Iterable[dict[str, Any]], *, as_json: bool) -> bool:
    """Print findings on standard error, one line each, and return whether there are any."""
    rows = list(findings)
    if as_json:
        for row in rows:
            print_json({"finding": row})
        return bool(rows)
    for row in rows[:_FINDINGS_SHOWN]:
        place = f"metadata_partition={row['metadata_partition']} offset={row['offset']}"
        line = f"isotherm: {row['kind']}: {row['text']} {place}"
        error_console().print(line, style="red", soft_wrap=True)
    if len(rows) > _FINDINGS_SHOWN:
        error_console().print(f"isotherm: and {len(rows) - _FINDINGS_SHOWN} more")
    return bool(rows)


def _print_states(segments: Any, records: int) -> None:
    counted = {row["state"]: row["count"] for row in segments.groupBy("state").count().collect()}
    states = ", ".join(f"{count} {state}" for state, count in sorted(counted.items())) or "none"
    console().print(f"\n{records} records; live segments: {states}.")
