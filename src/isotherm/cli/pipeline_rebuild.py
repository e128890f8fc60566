"""`isotherm pipeline rebuild`: rebuilds metadata from the bucket's manifests alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    AsJson,
    ClientOptions,
    parse_pairs,
)
from isotherm.cli.output import console, human_size, print_json
from isotherm.cli.pipeline_bucket import (
    BegunListing,
    MaxBytes,
    begin_listing,
    finish_listing,
    listed_segments,
    print_cost,
    storage_of,
    topics_chosen,
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
from isotherm.clock import SystemClock
from isotherm.errors import ConfigError
from isotherm.remote.segment_metadata import RemoteLogSegmentState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from isotherm.broker.startup.rebuilt_partitions import RebuiltPartition
    from isotherm.config.broker import BrokerConfig
    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.spark.jobs.rebuild import Rebuilt
    from isotherm.spark.options import SourceOptions

_PARTITION_COLUMNS = [
    "topic", "topic_id", "partition", "log_start", "stable_end", "log_end", "epochs", "segments",
    "bytes",
]  # fmt: skip
_FINDING_COLUMNS = ["kind", "topic", "partition", "start_offset", "segment_id", "detail"]
_EPOCHS_AS_TEXT = (
    "array_join(transform(epochs, each -> concat(each.epoch, ' from ', each.start_offset)), ', ')"
)


_Run = Annotated[bool, typer.Option("--run", help="Write. Without it the plan is shown.")]
_LogDir = Annotated[
    list[Path] | None,
    typer.Option(
        "--log-dir",
        metavar="DIR",
        help="Write into a stopped Isotherm broker. Name all of its directories.",
    ),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Write into the log directories that this server.properties names.",
    ),
]
_ToTopic = Annotated[
    str | None,
    typer.Option(
        "--to-topic",
        metavar="NAME",
        help="Write into a topic of your own on --bootstrap-server.",
    ),
]
_To = Annotated[
    str | None,
    typer.Option("--to", metavar="FOLDER", help="Write into a folder, as Parquet by Spark."),
]
_PartitionDirs = Annotated[
    Path | None,
    typer.Option(
        "--partition-dirs",
        metavar="FOLDER",
        help="Also write the partitions' directories into an empty folder, for log.dirs of a"
        " stopped broker of Apache Kafka.",
    ),
]
_TopicId = Annotated[
    list[str] | None,
    typer.Option(
        "--topic-id",
        metavar="OLD=NEW",
        help="Give a topic another id. May be given many times.",
    ),
]
_OnlyId = Annotated[
    list[str] | None,
    typer.Option(
        "--only-id",
        metavar="ID",
        help="Only topics of this id. It chooses one of several topics that had the same name.",
    ),
]
_MetadataPartitions = Annotated[
    int,
    typer.Option(
        "--metadata-partitions",
        min=1,
        help="The number of partitions of the topic that gets the events.",
    ),
]
_Level = Annotated[
    int, typer.Option("--level", min=0, max=1, help="0: events; 1: keyed states (KIP-1266).")
]


@with_groups
def rebuild(
    *,
    path: TierPath = None,
    run: _Run = False,
    log_dir: _LogDir = None,
    config: _Config = None,
    bootstrap_server: OptionalBootstrapServer = None,
    to_topic: _ToTopic = None,
    to: _To = None,
    partition_dirs: _PartitionDirs = None,
    topic_id: _TopicId = None,
    only_id: _OnlyId = None,
    metadata_partitions: _MetadataPartitions = 50,
    level: _Level = 0,
    max_bytes: MaxBytes = None,
    as_json: AsJson = False,
    spark_options: SparkOptions,
    client: ClientOptions,
    option: SourceOption = None,
) -> None:
    """Rebuild the remote tier's metadata from the bucket's manifests.

    This job is for a cluster that lost its metadata topic or its disks, or for a new one that will
    serve the history. It shows the plan: the offsets, epochs and segments of each partition. With
    --run it writes: into the log directories of a stopped, empty Isotherm broker, which serves the
    history after its next start; into a topic of your own; or into a folder. It never writes into a
    cluster's __remote_log_metadata. Your own RemoteStorageManager
    (-o remote.log.storage.manager.class.name=...) lists its segments itself.

    isotherm pipeline rebuild --path s3://bucket/kafka --log-dir /var/lib/isotherm/log --run

    Exit codes: 0 clean · 1 failed, or refused · 2 wrong options · 3 some segments are left out.
    """
    _check_targets(log_dir or None, config, to_topic, to, is_needed=run)
    _check_topic(to_topic, bootstrap_server)
    options, store = storage_of(path, option)
    from isotherm.spark.jobs.rebuild import mapped

    ids, broker = parse_pairs(topic_id), _broker_config(log_dir, config)
    new_dirs = [] if broker is None else _new_directories(broker.log_dirs)
    from isotherm.remote.storage.settings import ObjectStoreSettings

    if broker is not None and (ids or partition_dirs is not None):
        raise ConfigError(
            "a rebuild into log directories keeps the topic ids and needs no partition directories"
        )
    if ids and not isinstance(store, ObjectStoreSettings):
        raise ConfigError(
            "a storage manager of your own finds its segments by the topic ids they were copied"
            f" under value={options.storage_manager} hint='leave --topic-id out'"
        )
    with ExitStack() as kept:
        begun = None
        if isinstance(store, ObjectStoreSettings):
            begun = begin_listing(store, everywhere=False, may_be_small=may_be_small(spark_options))
        is_small = begun is not None and begun.small is not None
        spark = kept.enter_context(spark_session(spark_options, is_small=is_small))
        spark = job_session(spark, spark_options, is_small=is_small)
        with progress("listing the bucket") as show_step:
            rebuilt = _rebuilt(
                kept, spark, options, store, begun, only_id, max_bytes, show_step, as_json=as_json
            )
            kept.callback(rebuilt.close)
            has_findings = _print_plan(rebuilt, [] if run else new_dirs, as_json=as_json)
        segments = rebuilt.segments
        if ids and isinstance(store, ObjectStoreSettings):
            segments = mapped(segments, store, ids)
        if run:
            with progress("writing metadata"):
                if partition_dirs is not None:
                    _write_partition_dirs(rebuilt, ids, partition_dirs)
                if broker is not None:
                    count = _write_broker(rebuilt, broker)
                else:
                    count = _write_events(
                        segments,
                        metadata_partitions,
                        level,
                        to,
                        to_topic,
                        {
                            "bootstrap.servers": bootstrap_server or "",
                            **client.properties,
                        },
                    )
            _tell_written(count, as_json=as_json)
        elif not as_json:
            console().print("Nothing is written without --run.")
    if has_findings:
        raise typer.Exit(EXIT_FOUND)


def _rebuilt(
    kept: ExitStack,
    spark: SparkSession,
    options: SourceOptions,
    store: ObjectStoreSettings | SourceOptions,
    begun: BegunListing | None,
    only_ids: list[str] | None,
    max_bytes: int | None,
    show_step: Callable[[str], None],
    *,
    as_json: bool,
) -> Rebuilt:
    from pyspark.sql import functions as sql

    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.spark.jobs.rebuild import rebuild, rebuild_from

    if not isinstance(store, ObjectStoreSettings):
        is_whole = sql.col("state") == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
        segments = listed_segments(spark, store).where(is_whole)
        return rebuild_from(_chosen(segments, options, only_ids), store)
    assert begun is not None, "the caller has begun to list the bucket"
    listing = finish_listing(spark, store, begun, as_json=as_json)
    if begun.small is None:
        # The cost of the manifests and the rebuild use it.
        listing = listing.persist()
        kept.callback(listing.unpersist)
    listing = _chosen(listing, options, only_ids)
    _check_manifests(spark, listing, store, max_bytes, as_json=as_json)
    show_step("reading manifests")
    return rebuild(listing, store)


def _chosen(listing: DataFrame, options: SourceOptions, only_ids: list[str] | None) -> DataFrame:
    of_topics = listing.where(topics_chosen(options))
    return of_topics.where(listing.topic_id.isin(only_ids)) if only_ids else of_topics


def _check_manifests(
    spark: SparkSession,
    listing: DataFrame,
    store: ObjectStoreSettings,
    max_bytes: int | None,
    *,
    as_json: bool,
) -> None:
    from isotherm.spark.jobs.cost import check_cost, cost_of_manifests, parallel_tasks

    suffix = store.create_layout().commit_suffix
    cost = cost_of_manifests(listing, suffix, parallel_tasks(spark))
    print_cost(cost, as_json=as_json)
    check_cost(cost, max_bytes)


def _check_targets(*targets: object, is_needed: bool) -> None:
    named = sum(target is not None for target in targets)
    if named > 1 or (is_needed and named == 0):
        raise ConfigError("choose one of --log-dir, --config, --to-topic and --to")


def _check_topic(to_topic: str | None, bootstrap_server: str | None) -> None:
    if to_topic is None:
        return
    if bootstrap_server is None:
        raise ConfigError("--to-topic goes with --bootstrap-server")
    from isotherm.remote.metadata.topic.kafka_topic import check_is_own_topic

    check_is_own_topic(to_topic)


def _broker_config(log_dirs: list[Path] | None, config: Path | None) -> BrokerConfig | None:
    if not log_dirs and config is None:
        return None
    from isotherm.config.layers import read_properties
    from isotherm.config.server_properties import parse_broker_config

    texts = {"log.dirs": ",".join(str(log_dir) for log_dir in log_dirs or ())}
    if config is not None:
        texts = read_properties(config)
    # The broker will serve this tier, so the remote storage system is on whatever the file says.
    return parse_broker_config({**texts, "remote.log.storage.system.enable": "true"})


def _new_directories(log_dirs: Iterable[Path]) -> list[Path]:
    """The log directories that do not exist. Raises ConfigError for a file in the place of one."""
    for log_dir in log_dirs:
        if log_dir.exists() and not log_dir.is_dir():
            raise ConfigError(
                f"not a log directory option=--log-dir path={log_dir} reason='a file'"
            )
    return [log_dir for log_dir in log_dirs if not log_dir.exists()]


def _print_plan(rebuilt: Rebuilt, new_dirs: Sequence[Path], *, as_json: bool) -> int:
    from pyspark.sql import functions as sql

    partitions = rebuilt.partitions.drop("producer_snapshot")
    ordered = partitions.orderBy("topic", "topic_id", "partition")
    if not as_json:
        ordered = ordered.withColumn("epochs", sql.expr(_EPOCHS_AS_TEXT))
    print_frame(ordered, _PARTITION_COLUMNS, as_json=as_json)
    rows = partitions.select("segments", "bytes").collect()
    findings = rebuilt.findings.persist()
    count = findings.count()
    if count:
        print_frame(findings.orderBy("topic", "partition"), _FINDING_COLUMNS, as_json=as_json)
    findings.unpersist()
    totals = {
        "partitions": len(rows),
        "segments": sum(int(row["segments"]) for row in rows),
        "bytes": sum(int(row["bytes"]) for row in rows),
        "findings": count,
    }
    if as_json:
        print_json({"found": totals})
    else:
        console().print(
            f"\n{totals['partitions']} partitions, {totals['segments']} segments,"
            f" {human_size(totals['bytes'])}; {count} findings."
        )
        if new_dirs:
            console().print(f"--run makes these folders: {', '.join(map(str, new_dirs))}")
    return count


def _rebuilt_partitions(rebuilt: Rebuilt, ids: dict[str, str]) -> list[RebuiltPartition]:
    """The partitions, with the new ids of their topics."""
    from isotherm.broker.startup.rebuilt_partitions import RebuiltPartition
    from isotherm.segment.leader_epoch_checkpoint import EpochEntry
    from isotherm.types import TopicIdPartition, uuid_from_text

    return [
        RebuiltPartition(
            TopicIdPartition(
                uuid_from_text(ids.get(row["topic_id"], row["topic_id"])),
                row["topic"],
                row["partition"],
            ),
            row["log_start"],
            row["log_end"],
            [EpochEntry(entry["epoch"], entry["start_offset"]) for entry in row["epochs"]],
            None if row["producer_snapshot"] is None else bytes(row["producer_snapshot"]),
        )
        for row in rebuilt.partitions.orderBy("topic", "partition").collect()
    ]


def _write_partition_dirs(rebuilt: Rebuilt, ids: dict[str, str], folder: Path) -> None:
    from isotherm.broker.startup.rebuilt_partitions import write_partition_directories
    from isotherm.log.fs import OsFileSystem

    partitions = _rebuilt_partitions(rebuilt, ids)
    write_partition_directories(OsFileSystem(), folder, partitions, SystemClock().now_ms())


def _write_broker(rebuilt: Rebuilt, config: BrokerConfig) -> int:
    # The import of a broker takes half a second.
    from isotherm.broker.startup.log_dir_rebuild import metadata_partition_count, rebuild_log_dirs
    from isotherm.log.fs import OsFileSystem
    from isotherm.remote.metadata.api import NewMetadataRecord
    from isotherm.spark.jobs.rebuild import events

    partitions = _rebuilt_partitions(rebuilt, {})
    made = events(rebuilt.segments, metadata_partition_count(config))
    records = (
        (
            row["metadata_partition"],
            NewMetadataRecord(None, bytes(row["value"]), row["timestamp_ms"]),
        )
        for row in made.toLocalIterator()
    )
    return rebuild_log_dirs(
        config,
        partitions,
        records,
        clock=SystemClock(),
        fs=OsFileSystem(),
        rng=random.SystemRandom(),
    )


def _write_events(
    segments: DataFrame,
    partitions: int,
    level: int,
    to: str | None,
    to_topic: str | None,
    client_properties: dict[str, str],
) -> int:
    from isotherm.spark.jobs.rebuild import events, write_to_topic

    made = events(segments, partitions, level=level)
    if to_topic is not None:
        return write_to_topic(made, client_properties, to_topic)
    assert to is not None, "checked with the other targets"
    made.write.parquet(to)
    return made.count()


def _tell_written(count: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"written": count})
    else:
        console().print(f"{count} metadata records written.")
