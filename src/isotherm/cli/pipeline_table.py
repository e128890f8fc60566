"""`isotherm pipeline table`: keeps a topic as a table, to which each run appends new records."""

from __future__ import annotations

from contextlib import closing
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
from isotherm.cli.pipeline_bucket import DryRun, MaxBytes
from isotherm.cli.pipeline_options import (
    OptionalBootstrapServer,
    SourceOption,
    SparkOptions,
    TierPath,
    source_texts,
)
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from isotherm.spark.options import SourceOptions

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
_To = Annotated[str, typer.Option("--to", metavar="FORMAT", help="iceberg, delta or parquet.")]
_Value = Annotated[
    str,
    typer.Option(
        "--value",
        metavar="FORMAT",
        help="The format of values: raw, unchanged bytes; string, UTF-8; json, objects whose fields"
        " become columns; avro, protobuf or json-schema, after the id of a schema in --registry.",
    ),
]
_Key = Annotated[
    str, typer.Option("--key", metavar="FORMAT", help="The format of keys, as in --value.")
]
_Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="append: all records; latest: the newest value of each key, without keys that a"
        " tombstone has deleted.",
    ),
]
_Unwrap = Annotated[
    str,
    typer.Option(
        "--unwrap",
        metavar="EVENTS",
        help="With --mode latest: debezium, if values are change events of Debezium. The row is"
        " their `after`, and a deletion deletes it.",
    ),
]
_PartitionBy = Annotated[
    str,
    typer.Option(
        "--partition-by",
        metavar="UNIT",
        help="Partition the table by the day or hour of the timestamp, or none.",
    ),
]
_Warehouse = Annotated[
    str | None,
    typer.Option(
        "--warehouse",
        metavar="URL",
        help="The folder or bucket of tables. It is created if needed; the default is"
        " isotherm-warehouse. For a REST catalog, the server's name of the warehouse.",
    ),
]
_Table = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="NAME",
        help="The name of the table. The default is kafka.TOPIC in lower case with _ for each dot,"
        " as kafka.db_public_cust for db.public.Cust; for Delta and Parquet it is TOPIC.",
    ),
]
_Catalog = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="NAME",
        help="A catalog of PyIceberg's configuration. The default is in SQLite, in the warehouse.",
    ),
]
_ToOption = Annotated[
    list[str] | None,
    typer.Option(
        "--to-option",
        metavar="KEY=VALUE",
        help="A property of the Iceberg catalog, such as uri=https://catalog; for Delta and"
        " Parquet a setting of the object store, such as s3.endpoint.url=http://localhost:9000. May"
        " be given many times.",
    ),
]
_Until = Annotated[
    str,
    typer.Option(
        "--until",
        metavar="END",
        help="latest: to the end of the topic; tiered: to the end of the bucket. A later run adds"
        " the records that only brokers have now.",
    ),
]
_Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Run again and again, until SIGINT or SIGTERM."),
]
_Interval = Annotated[
    float,
    typer.Option(
        "--interval", min=0, help="With --follow: seconds from the start of a run to the next."
    ),
]
_RetryTimeout = Annotated[
    float,
    typer.Option(
        "--retry-timeout",
        min=0,
        help="With --follow: seconds for which brokers, bucket, registry or catalog may be"
        " unavailable.",
    ),
]
_Compact = Annotated[
    bool,
    typer.Option(
        "--compact",
        help="After the run, merge files of less than 128 MB, in one commit that keeps all rows.",
    ),
]
_Expire = Annotated[
    str | None,
    typer.Option(
        "--expire-snapshots",
        metavar="AGE",
        help="After the run, expire snapshots that are older than this, such as 7d, 12h or 30m,"
        " and delete the files that only they refer to.",
    ),
]
_Retention = Annotated[
    str,
    typer.Option(
        "--retention",
        metavar="WHAT",
        help="keep: all rows stay; follow: after the run, delete the rows of records that Kafka has"
        " deleted, which are below the brokers' log start.",
    ),
]
_UpkeepEvery = Annotated[
    int,
    typer.Option(
        "--upkeep-every",
        min=1,
        help="With --follow: the number of commits between two runs of --compact,"
        " --expire-snapshots and --retention.",
    ),
]
UNTIL_LATEST, UNTIL_TIERED = "latest", "tiered"


@with_groups
def table(
    *,
    topic: _Topic,
    path: TierPath = None,
    bootstrap_server: OptionalBootstrapServer = None,
    to: _To = "iceberg",
    value: _Value = "raw",
    key: _Key = "raw",
    mode: _Mode = "append",
    unwrap: _Unwrap = "none",
    partition_by: _PartitionBy = "none",
    registry: Registry = None,
    registry_option: RegistryOption = None,
    warehouse: _Warehouse = None,
    table_name: _Table = None,
    catalog: _Catalog = None,
    to_option: _ToOption = None,
    until: _Until = UNTIL_LATEST,
    follow: _Follow = False,
    interval: _Interval = 60.0,
    retry_timeout: _RetryTimeout = 3600.0,
    compact: _Compact = False,
    expire_snapshots: _Expire = None,
    retention: _Retention = "keep",
    upkeep_every: _UpkeepEvery = 60,
    dry_run: DryRun = False,
    max_bytes: MaxBytes = None,
    option: SourceOption = None,
    client: ClientOptions,
    spark_options: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Create a table from a topic, or add the topic's new records to it.

    Each record is in the table once, or in the table of dead letters if its key or value cannot be
    decoded. Records of aborted transactions are in neither. After an interruption at any point,
    start the command again. Without brokers the table ends at the end of the bucket.

    isotherm pipeline table flights --path s3://bucket/kafka --value json --warehouse s3://lake

    Exit codes: 0 done · 1 failed, or another run was faster · 2 wrong options · 3 damage.
    """
    from isotherm.cli.table_command import TableCommand, upkeep_settings
    from isotherm.spark.jobs.table_follow import FollowSettings
    from isotherm.spark.jobs.table_runs import TableRuns
    from isotherm.spark.tables.open_table import TablePlace, open_table
    from isotherm.spark.tables.schema_registry import registry_settings
    from isotherm.spark.tables.time_partitions import check_partition_by
    from isotherm.spark.tables.topic_table import (
        LATEST,
        NOTHING,
        Identity,
        check_mode,
        check_unwrap,
    )
    from isotherm.spark.tables.value_formats import formats

    if follow and dry_run:
        raise ConfigError("a dry run does not follow the topic options=--dry-run,--follow")
    properties = client.properties
    options = _options(topic, path, option, bootstrap_server, properties, until)
    registered = registry_settings(registry, parse_pairs(registry_option))
    check_mode(mode, to)
    check_unwrap(unwrap, mode)
    check_partition_by(partition_by)
    decoded = formats(key, value, registered, needs_key=mode == LATEST, unwraps=unwrap != NOTHING)
    place = TablePlace(to, warehouse, table_name, catalog, parse_pairs(to_option))
    target = open_table(topic, place, writes=True)
    identity = Identity(
        topic=topic,
        topic_id="",
        value_format=value,
        key_format=key,
        mode=mode,
        unwrap=unwrap,
        partition_by=partition_by,
    )
    upkeep = upkeep_settings(
        to, options, compacts=compact, expire=expire_snapshots, retention=retention
    )
    with closing(TableRuns(options, target, identity, decoded, registered, max_bytes)) as runs:
        command = TableCommand(target, runs, upkeep, spark_options, as_json=as_json)
        if follow:
            command.follow(FollowSettings(interval, retry_timeout), upkeep_every)
        elif dry_run:
            command.print_plan()
        else:
            command.run_once()


def _options(
    topic: str,
    path: str | None,
    option: list[str] | None,
    bootstrap_server: str | None,
    client: dict[str, str],
    until: str,
) -> SourceOptions:
    from isotherm.spark.tables.open_table import check_chosen, table_source_options

    check_chosen(parse_pairs(option))
    texts = source_texts(path, [*(option or ()), f"subscribe={topic}"], bootstrap_server, client)
    if until not in (UNTIL_LATEST, UNTIL_TIERED):
        raise ConfigError(
            f"no such end option=--until value={until} known={UNTIL_LATEST},{UNTIL_TIERED}"
        )
    if until == UNTIL_TIERED:
        if "includetail" in {text.lower() for text in texts}:
            raise ConfigError("--until and -o includeTail exclude each other: give one of them")
        texts["includeTail"] = "false"
    return table_source_options(texts)
