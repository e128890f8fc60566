"""`isotherm pipeline verify`: compares a metadata topic with its projection or its keyed
records."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import AsJson, ClientOptions
from isotherm.cli.output import console
from isotherm.cli.pipeline_bucket import MaxBytes
from isotherm.cli.pipeline_metadata import (
    DEFAULT_TOPIC,
    Audit,
    Dump,
    LogDirs,
    MetadataPlace,
    MetadataTopicName,
    StoreOption,
    is_small_metadata,
    metadata_log,
    store_settings,
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
from isotherm.cli.pipeline_replay import print_findings
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from isotherm.spark.metadata.remote_metadata_log import MetadataLog

_COLUMNS = ["topic", "partition", "segment_id", "kind", "field", "expected", "found"]


_Against = Annotated[
    str | None,
    typer.Option("--against", metavar="URL", help="A projection made by `project --to`."),
]
_AgainstTopic = Annotated[
    str | None,
    typer.Option("--against-topic", metavar="NAME", help="A topic made by `project --to-topic`."),
]
_AgainstKeys = Annotated[
    bool,
    typer.Option(
        "--against-keys",
        help="The topic's own keyed records, which stay when a migrated topic is compacted.",
    ),
]
_AgainstDump = Annotated[
    str | None,
    typer.Option(
        "--against-dump", metavar="URL", help="Files of another state of the topic's log."
    ),
]


@with_groups
def verify(
    *,
    bootstrap_server: OptionalBootstrapServer = None,
    log_dir: LogDirs = None,
    dump: Dump = None,
    audit: Audit = False,
    topic: MetadataTopicName = DEFAULT_TOPIC,
    against: _Against = None,
    against_topic: _AgainstTopic = None,
    against_keys: _AgainstKeys = False,
    against_dump: _AgainstDump = None,
    max_bytes: MaxBytes = None,
    as_json: AsJson = False,
    spark_options: SparkOptions,
    client: ClientOptions,
    option: StoreOption = None,
) -> None:
    """Compare the full history with a projection or a migrated topic, segment by segment.

    Every live segment must have the same state, offsets, leader epochs, times, size and custom
    metadata. A projection is compared with the history up to the end of its last run.

    isotherm pipeline verify -b localhost:9092 --against s3://ops/metadata

    Exit codes: 0 the same · 1 failed · 2 wrong options · 3 differences, one line each.
    """
    if [against, against_topic, against_dump, against_keys or None].count(None) != 3:
        raise ConfigError(
            "choose one of --against, --against-topic, --against-keys and --against-dump"
        )
    properties = client.properties
    place = MetadataPlace(bootstrap_server, properties, log_dir, dump, option)
    log = metadata_log(place, topic, audit=audit, max_bytes=max_bytes)
    from isotherm.spark.jobs.project import projected_segments
    from isotherm.spark.jobs.replay import AsOf, replay
    from isotherm.spark.jobs.verify import KeyedRecordsOf, projected_point
    from isotherm.spark.jobs.verify import verify as compare
    from isotherm.spark.small_input import kept as kept_rows

    with ExitStack() as kept:
        other: MetadataLog = KeyedRecordsOf(log)
        if against_topic is not None:
            other = metadata_log(place, against_topic, max_bytes=max_bytes)
        elif against_dump is not None:
            copy = MetadataPlace(None, {}, None, against_dump, option)
            other = metadata_log(copy, topic, max_bytes=max_bytes)
        # A projection has a row for each live segment, so it is small if the history is.
        logs = (log, other) if against is None else (log,)
        is_small = is_small_metadata(spark_options, *logs)
        spark = kept.enter_context(spark_session(spark_options, is_small=is_small))
        spark = job_session(spark, spark_options, is_small=is_small)
        if against is not None:
            target = store_settings(against, option)
            # Read this before the history, so that records projected in between are not compared.
            projected, point = projected_segments(spark, target), projected_point(target, log)
        else:
            projected, point = kept.enter_context(replay(spark, other)).segments, AsOf()
        history = kept.enter_context(replay(spark, log, as_of=point))
        with progress("reading both sides"):
            differences = kept_rows(compare(history.segments, projected))
            count = differences.count()
            findings = [row.asDict() for row in history.findings.collect()]
        if count or as_json:
            print_frame(differences, _COLUMNS, as_json=as_json)
        if not as_json:
            compared = history.segments.count()
            console().print(f"\n{compared} live segments compared, {count} differences.")
    if print_findings(findings, as_json=as_json) or count:
        raise typer.Exit(EXIT_FOUND)
