"""`isotherm pipeline project`: the metadata topic as a bounded table that is kept up to date."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    AsJson,
    ClientOptions,
)
from isotherm.cli.output import console, print_json
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
    progress,
    spark_session,
)
from isotherm.cli.pipeline_replay import print_findings
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from isotherm.spark.jobs.project import ProjectionRun
    from isotherm.spark.jobs.project_topic import TopicProjection


_To = Annotated[
    str,
    typer.Option(
        "--to", metavar="URL", help="Folder or bucket of the projection. It is created if needed."
    ),
]
_TableFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="Also keep a table of this format: delta or iceberg. Spark must have its package.",
    ),
]
_Table = Annotated[
    str | None, typer.Option("--table", metavar="PLACE", help="That table's path or name.")
]
_ToTopic = Annotated[
    str | None,
    typer.Option(
        "--to-topic",
        metavar="NAME",
        help="Also keep a compacted topic of keyed states. It is created if needed, and cannot be"
        " the metadata topic itself.",
    ),
]


@with_groups
def project(
    *,
    to: _To,
    bootstrap_server: OptionalBootstrapServer = None,
    log_dir: LogDirs = None,
    dump: Dump = None,
    audit: Audit = False,
    topic: MetadataTopicName = DEFAULT_TOPIC,
    table_format: _TableFormat = None,
    table: _Table = None,
    to_topic: _ToTopic = None,
    max_bytes: MaxBytes = None,
    as_json: AsJson = False,
    spark_options: SparkOptions,
    client: ClientOptions,
    option: StoreOption = None,
) -> None:
    """Project the metadata topic to a table with one row for each live segment (KIP-1266).

    The first run reads the whole topic, and each later run only new records. After an interruption
    at any point the next run does the rest. Spark reads the table with metadata=table.

    isotherm pipeline project -b localhost:9092 --to s3://ops/metadata

    Exit codes: 0 done · 1 failed · 2 wrong options · 3 damage of the topic.
    """
    _check_options(table_format, table, bootstrap_server, to_topic)
    properties = client.properties
    place = MetadataPlace(bootstrap_server, properties, log_dir, dump, option)
    log = metadata_log(place, topic, audit=audit)
    target = store_settings(to, option, writes=True)
    from isotherm.spark.jobs import project as job
    from isotherm.spark.jobs.cost import check_cost
    from isotherm.spark.jobs.project_topic import project_to_topic
    from isotherm.spark.jobs.replay import cost_of_log

    if max_bytes is not None:
        cost = job.cost_of_projecting(log, target)
        # A projection to a topic reads the whole history in each run.
        check_cost(cost if to_topic is None else cost + cost_of_log(log), max_bytes)
    written = None
    is_small = is_small_metadata(spark_options, log)
    with (
        spark_session(spark_options, is_small=is_small) as spark,
        progress("reading metadata") as show_step,
    ):
        if table_format is not None:
            job.check_table_format(spark, table_format)
        done = job.project(job_session(spark, spark_options, is_small=is_small), log, target)
        if table_format is not None and table is not None:
            show_step("writing the table")
            job.write_table(spark, target, table_format, table)
        if to_topic is not None and bootstrap_server is not None:
            show_step("writing the topic")
            cluster = {"bootstrap.servers": bootstrap_server, **properties}
            written = project_to_topic(spark, cluster, to_topic, log.topic)
    findings = [asdict(finding) for finding in done.findings]
    _print_run(done, written, to_topic, as_json=as_json)
    if print_findings(findings, as_json=as_json):
        raise typer.Exit(EXIT_FOUND)


def _check_options(
    table_format: str | None, table: str | None, bootstrap_server: str | None, to_topic: str | None
) -> None:
    if (table_format is None) != (table is None):
        raise ConfigError("--format and --table go together")
    if to_topic is not None and bootstrap_server is None:
        raise ConfigError("--to-topic writes to a cluster: name it with --bootstrap-server")
    if to_topic is not None:
        from isotherm.remote.metadata.topic.kafka_topic import check_is_own_topic

        check_is_own_topic(to_topic)


def _print_run(
    done: ProjectionRun, written: TopicProjection | None, to_topic: str | None, *, as_json: bool
) -> None:
    if as_json:
        fields = {name: value for name, value in asdict(done).items() if name != "findings"}
        print_json(fields if written is None else {**fields, "topic": asdict(written)})
        return
    console().print(
        f"{done.records} new records in {done.changed} of {done.metadata_partitions} metadata"
        f" partitions, which have {done.segments} live segments now."
    )
    if written is not None:
        console().print(
            f"{to_topic}: {written.states} states and {written.tombstones} tombstones written;"
            f" it has {written.live_segments} live segments."
        )
