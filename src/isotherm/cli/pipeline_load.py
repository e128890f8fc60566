"""`isotherm pipeline load`: writes a table as the history of a tiered topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    AsJson,
    ClientOptions,
    Registry,
    RegistryOption,
    parse_pairs,
)
from isotherm.cli.output import console, human_size, print_json, print_rows
from isotherm.cli.pipeline_options import (
    OptionalBootstrapServer,
    SourceOption,
    SparkOptions,
    TierPath,
    progress,
    source_texts,
    spark_session,
)
from isotherm.cli.pipeline_recovery import show_recovery
from isotherm.clock import SystemClock
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from isotherm.spark.jobs.load import LoadReport, LoadSettings
    from isotherm.spark.options import SourceOptions

Topic = Annotated[str, typer.Argument(help="The topic: tiered, and without records.")]
Input = Annotated[
    str | None, typer.Argument(metavar="INPUT", help="The input's path, as Spark has it.")
]
Format = Annotated[
    str,
    typer.Option(
        "--from",
        help="The input's format: parquet, json, csv, orc, delta or iceberg. Spark's jars read the"
        " last two, and without them delta-rs and PyIceberg.",
    ),
]
ReadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--read-option",
        metavar="KEY=VALUE",
        help="An option of Spark's reader, such as header=true; without jars a setting of Delta's"
        " store (s3.region=), or of Iceberg's catalog (warehouse=, catalog=, uri=). May be given"
        " many times.",
    ),
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME=SQL",
        help="A column of the record (key, value, headers, timestamp, partition) from the input's"
        " columns. May be given many times. Without it the input's own columns are taken.",
    ),
]
KeyFormat = Annotated[
    str,
    typer.Option(
        "--key-format", help="binary (a binary or string column), or as for --value-format."
    ),
]
ValueFormat = Annotated[
    str,
    typer.Option(
        "--value-format",
        help="binary (a binary or string column), or json, avro, protobuf, json-schema: of the"
        " column value, or without one of all columns that are no part of a record. The last three"
        " take the newest schema of TOPIC-value in --registry.",
    ),
]
PartitionerOption = Annotated[
    str,
    typer.Option(
        "--partitioner",
        help="murmur2 (Kafka's clients), consistent (librdkafka's), or column: partition.",
    ),
]
OrderBy = Annotated[
    str | None,
    typer.Option(
        "--order-by",
        metavar="SQL",
        help="The order within a partition: an integer, a date or a time. Default: the timestamp.",
    ),
]
Compression = Annotated[
    str | None,
    typer.Option(
        "--compression", help="none, gzip, snappy, lz4 or zstd. By default the topic's codec."
    ),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Bytes of a batch before compression.")
]
SegmentBytes = Annotated[
    int | None, typer.Option(min=1, help="Bytes of a segment. By default the topic's.")
]
Append = Annotated[
    bool,
    typer.Option(
        "--append",
        help="The topic may have the history of an earlier run, if no producer has written since.",
    ),
]
Run = Annotated[
    bool, typer.Option("--run", help="Write. Without it the input is read, and the plan shown.")
]
Recover = Annotated[
    bool,
    typer.Option(
        "--recover",
        help="Show interrupted runs; with --run undo them. No other run may be in progress.",
    ),
]
WaitS = Annotated[
    int,
    typer.Option(min=0, help="Seconds to wait until the broker has adopted the history."),
]
WAIT_S_DEFAULT = 600
_NO_SOURCE = "DATA_SOURCE_NOT_FOUND"


@with_groups
def load(
    topic: Topic,
    input_path: Input = None,
    *,
    from_format: Format = "parquet",
    read_option: ReadOption = None,
    column: Column = None,
    key_format: KeyFormat = "binary",
    value_format: ValueFormat = "binary",
    registry: Registry = None,
    registry_option: RegistryOption = None,
    path: TierPath = None,
    bootstrap_server: OptionalBootstrapServer = None,
    partitioner: PartitionerOption = "murmur2",
    order_by: OrderBy = None,
    compression: Compression = None,
    batch_size: BatchSize = None,
    segment_bytes: SegmentBytes = None,
    append: Append = False,
    run: Run = False,
    recover: Recover = False,
    wait_s: WaitS = WAIT_S_DEFAULT,
    option: SourceOption = None,
    client: ClientOptions,
    spark_options: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Write a table's rows as the history of a tiered topic that has no records.

    The job writes segments into the topic's bucket, and the topic's broker adopts them: consumers
    read them from the beginning, and producers go on behind them. No record passes through a
    broker. The input has the columns of Spark's Kafka sink: value, and optionally key, headers,
    timestamp, partition. Nothing is written without --run.

    isotherm pipeline load flights s3a://lake/flights -b broker:9092 --path s3://bucket/kafka --run

    Exit codes: 0 done · 1 failed or refused · 2 wrong options.
    """
    from isotherm.spark.tables.schema_registry import registry_settings
    from isotherm.spark.value_encoding import check_encodings, encoded_columns

    options = options_of(topic, path, option, bootstrap_server, client)
    if recover:
        _recover(options, run=run, as_json=as_json)
        return
    if input_path is None:
        raise ConfigError("the input is not named hint='isotherm pipeline load TOPIC INPUT'")
    registered = registry_settings(registry, parse_pairs(registry_option))
    check_encodings(key_format, value_format, registered)
    settings = settings_of(
        partitioner, order_by, compression, batch_size, segment_bytes, appends=append
    )
    with spark_session(spark_options) as spark:
        frame = _read(spark, from_format, input_path, parse_pairs(read_option))
        frame = _chosen(frame, parse_pairs(column))
        frame = encoded_columns(frame, topic, key_format, value_format, registered)
        _write(frame, topic, options, settings, run=run, wait_s=wait_s, as_json=as_json)


def _read(
    spark: SparkSession, from_format: str, input_path: str, settings: dict[str, str]
) -> DataFrame:
    """The input by Spark's reader, or if Spark has no jars for a table by a library."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    from isotherm.spark.tables.input_tables import delta_frame, iceberg_frame

    readers = {"delta": delta_frame, "iceberg": iceberg_frame}
    try:
        return spark.read.format(from_format).options(**settings).load(input_path)
    except Py4JJavaError as error:
        if _NO_SOURCE not in str(error.java_exception) or from_format not in readers:
            raise
    return readers[from_format](spark, input_path, settings)


def options_of(
    topic: str,
    path: str | None,
    option: list[str] | None,
    bootstrap_server: str | None,
    client: ClientOptions,
) -> SourceOptions:
    from isotherm.spark.option_parsing import parse_options
    from isotherm.spark.tier.tier_settings import named_store

    texts = source_texts(path, option, bootstrap_server, client.properties)
    texts.pop("subscribePattern", None)
    options = parse_options({**texts, "subscribe": topic})
    from isotherm.remote.storage.store_check import check_store

    check_store(named_store(options), writes=True)
    return options


def settings_of(
    partitioner: str,
    order_by: str | None,
    compression: str | None,
    batch_size: int | None,
    segment_bytes: int | None,
    *,
    appends: bool,
) -> LoadSettings:
    from isotherm.spark.jobs.load import load_settings

    return load_settings(
        now_ms=SystemClock().now_ms(),
        partitioner=partitioner,
        order_by=order_by,
        compression=compression,
        batch_size=batch_size,
        segment_bytes=segment_bytes,
        appends=appends,
    )


def _chosen(frame: DataFrame, columns: dict[str, str]) -> DataFrame:
    from pyspark.sql import functions as sql

    from isotherm.spark.value_encoding import RECORD_COLUMNS

    unknown = sorted(set(columns) - set(RECORD_COLUMNS))
    if unknown:
        raise ConfigError(f"no columns of a record option=--column names={unknown}")
    return frame.withColumns({name: sql.expr(text) for name, text in columns.items()})


def _write(
    frame: DataFrame,
    topic: str,
    options: SourceOptions,
    settings: LoadSettings,
    *,
    run: bool,
    wait_s: int,
    as_json: bool,
) -> None:
    """Show the plan, or write the rows and wait for the broker."""
    from isotherm.spark.jobs import load as job

    with progress("reading the topic"):
        target = job.open_target(options, topic, settings)
    with progress("reading the input") as show_step, job.planned(frame, target, settings) as plan:
        reports = job.report(plan)
        if run:
            reports = job.load(plan, show_step, fetch_bytes=options.fetch_bytes)
    if run:
        with progress("waiting for the broker to adopt the history"):
            job.await_adoption(target.store, list(target.ends), wait_s, SystemClock())
    print_reports(reports, run=run, as_json=as_json)


def print_reports(reports: list[LoadReport], *, run: bool, as_json: bool) -> None:
    rows = [report.as_row() for report in reports]
    columns = ["topic", "partition", "start_offset", "records", "bytes"]
    if run:
        columns += ["segments", "written_bytes"]
    if as_json:
        print_json({"is_written": run, "partitions": [{k: r[k] for k in columns} for r in rows]})
        return
    print_rows(columns, rows, as_json=False)
    if not run:
        size = human_size(sum(report.bytes for report in reports))
        console().print(f"\nwould write {size} before compression; --run does it")


def _recover(options: SourceOptions, *, run: bool, as_json: bool) -> None:
    from isotherm.remote.rewriting.journal import RunKind
    from isotherm.spark.jobs.rewrite_run import RewriteSettings
    from isotherm.spark.tier.tier_settings import tier_settings

    settings = RewriteSettings(
        kind=RunKind.LOAD,
        source=tier_settings(options),
        target=None,
        now_ms=SystemClock().now_ms(),
        fetch_bytes=options.fetch_bytes,
        keep_old_ms=0,
    )
    show_recovery(settings, options, run=run, as_json=as_json)
