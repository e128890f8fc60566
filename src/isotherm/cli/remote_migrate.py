"""`isotherm remote migrate`: migrates the metadata topic to keyed, compacted records (KIP-1266)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from isotherm.cli.client import REQUEST_TIMEOUT_S, admin_client, one_line_errors
from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    AsJson,
    ClientOptions,
)
from isotherm.cli.output import console, error_console, human_size, print_json, print_rows
from isotherm.clock import SystemClock
from isotherm.config.layers import read_properties
from isotherm.errors import (
    ConfigError,
    CorruptMetadataError,
    PolicyViolationError,
    RequestTimedOutError,
)
from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.metadata.topic.log_dir_topic import LogDirMetadataTopic
from isotherm.remote.metadata.upkeep.migration import PartitionMigration, PartitionSurvey
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, REMOTE_LOG_METADATA_TOPIC

_FEATURE = "remote.log.metadata.compaction"
_META_PROPERTIES = "meta.properties"
_EXIT_NEEDED = 4
_WATCH_INTERVAL_S = 0.5
# Bytes of a record's fields and of its batch's header, where each record has its own batch.
_BATCH_OVERHEAD = 71
_COLUMNS = [
    "metadata_partition", "records", "without_key", "tombstones", "live_segments",
    "states_to_write", "tombstones_to_write", "size", "size_compacted",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Options:
    skip_corrupt: bool
    audit_retention_ms: int | None
    timeout_s: float
    as_json: bool

    def on_corrupt(self, error: CorruptMetadataError) -> None:
        """Raise the error, or with --skip-corrupt print it."""
        if not self.skip_corrupt:
            raise error
        typer.echo(f"isotherm: skipped: {error}", err=True)


@with_groups
def migrate(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Count the records to write; change nothing.")
    ] = False,
    run: Annotated[bool, typer.Option("--run", help="Migrate.")] = False,
    bootstrap_server: Annotated[
        str | None,
        typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", help="A running broker."),
    ] = None,
    log_dir: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="Log directory of a stopped broker. Name all that it has."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="server.properties of the stopped broker."
        ),
    ] = None,
    audit_retention_ms: Annotated[
        int | None,
        typer.Option(
            metavar="MS", help="How long the audit topic keeps events; by default for ever."
        ),
    ] = None,
    skip_corrupt: Annotated[
        bool,
        typer.Option("--skip-corrupt", help="Skip records that cannot be decoded, and name each."),
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(metavar="S", help="How long to wait for a running broker.")
    ] = 600.0,
    as_json: AsJson = False,
    client: ClientOptions,
) -> None:
    """Bring __remote_log_metadata to level 1: keyed, compacted, bounded (KIP-1266).

    At level 0 the topic keeps every event for ever, and each restart reads them all. Migration
    writes the state of every live segment under a key, verifies that the keyed records alone have
    the state of the whole topic, sets the feature remote.log.metadata.compaction to 1, and switches
    compaction on; the cleaner then drops the events. From then on __remote_log_metadata_audit has
    the events. There is no way back.

    Uploads, deletions and reads continue meanwhile. After an interruption, run it again: it does
    the rest. Only Isotherm's brokers are migrated. Those of Apache Kafka cannot read keyed records,
    so their topic is only checked, with --check.

    isotherm remote migrate --check -b localhost:9092

    isotherm remote migrate --run --log-dir /var/lib/isotherm/log

    The size of the compacted topic is an estimate. Exit codes: 0 done, or nothing to do · 1
    failed · 2 wrong options · 3 a damaged record was found · 4 migration is needed (--check).
    """
    if check == run:
        raise ConfigError("choose one of --check and --run")
    if sum(given is not None for given in (bootstrap_server, log_dir or None, config)) != 1:
        raise ConfigError("choose one of --bootstrap-server, --log-dir and --config")
    options = _Options(skip_corrupt, audit_retention_ms, timeout_s, as_json)
    if bootstrap_server is not None:
        _migrate_broker(bootstrap_server, client.properties, options, run=run)
    else:
        _migrate_log_dirs(_broker_texts(log_dir, config), options, run=run)


def _broker_texts(log_dirs: list[Path] | None, config: Path | None) -> dict[str, str]:
    if config is not None:
        return read_properties(config)
    assert log_dirs
    for log_dir in log_dirs:
        if not (log_dir / _META_PROPERTIES).is_file():
            raise ConfigError(
                f"not a broker's log directory: it has no {_META_PROPERTIES} option=--log-dir"
                f" dir={log_dir}"
            )
    texts = read_properties(log_dirs[0] / _META_PROPERTIES)
    return {
        "node.id": texts.get("node.id", "1"),
        "log.dirs": ",".join(str(log_dir) for log_dir in log_dirs),
    }


def _migrate_log_dirs(texts: dict[str, str], options: _Options, *, run: bool) -> None:
    # The import of a broker takes half a second.
    from isotherm.broker.startup.log_dir_migration import check_is_isotherms, migrate_log_dirs
    from isotherm.config.server_properties import parse_broker_config
    from isotherm.log.fs import OsFileSystem

    config = parse_broker_config({**texts, "remote.log.storage.system.enable": "true"})
    if not run:
        try:
            check_is_isotherms(config)
            is_isotherms = True
        except PolicyViolationError:
            is_isotherms = False
        _check(LogDirMetadataTopic(config.log_dirs), options, is_isotherms=is_isotherms)
        return
    with _progress() as report:
        surveys = migrate_log_dirs(
            config,
            clock=SystemClock(),
            fs=OsFileSystem(),
            rng=random.SystemRandom(),
            progress=report,
            on_corrupt=options.on_corrupt,
            audit_retention_ms=options.audit_retention_ms,
        )
    _print_surveys(surveys, options)
    _print_done(options)


def _migrate_broker(
    bootstrap_server: str, extra: dict[str, str], options: _Options, *, run: bool
) -> None:
    # The protocol's classes take long to import, and other commands of this group do not need them.
    from isotherm.cli.broker_features import raise_feature, read_features

    features = read_features(bootstrap_server, extra)
    is_isotherms = _FEATURE in features.supported
    with (
        one_line_errors(bootstrap_server),
        closing(KafkaMetadataTopic({"bootstrap.servers": bootstrap_server, **extra})) as topic,
    ):
        if not run:
            _check(topic, options, is_isotherms=is_isotherms)
            return
        if not is_isotherms:
            raise PolicyViolationError(
                "the cluster is not Isotherm's: brokers of Apache Kafka stop at keyed records, so"
                f" their metadata topic is never written to bootstrap-server={bootstrap_server}"
                " hint='isotherm pipeline project keeps a bounded table of it, which Spark and the"
                " jobs read instead'"
            )
        surveys = _surveys(topic, options)
        raise_feature(bootstrap_server, extra, _FEATURE, 1)
        _await_compaction(bootstrap_server, extra, options)
        _set_audit_retention(bootstrap_server, extra, options)
        left = [survey for survey in _surveys(topic, options) if not survey.is_migrated]
    if left:
        raise CorruptMetadataError(
            "the keyed records do not give the same state as all records"
            f" metadata_partitions={[survey.number for survey in left]}"
        )
    _print_surveys(surveys, options)
    _print_done(options)


def _check(topic: MetadataTopic, options: _Options, *, is_isotherms: bool) -> None:
    surveys = _surveys(topic, options)
    _print_surveys(surveys, options)
    is_needed = any(not survey.is_migrated for survey in surveys)
    if not is_isotherms and not options.as_json:
        console().print(
            "\nThis topic is Apache Kafka's, not Isotherm's: it cannot be migrated, and --run is"
            " refused. A projection of it stays bounded: isotherm pipeline project."
        )
    elif not options.as_json:
        console().print(
            "\nMigration is needed: run again with --run."
            if is_needed
            else "\nNothing to write: the keyed records have the whole state."
        )
    if is_needed:
        raise typer.Exit(_EXIT_NEEDED)


def _surveys(topic: MetadataTopic, options: _Options) -> list[PartitionSurvey]:
    """Survey one metadata partition at a time. Only the surveys stay in memory."""
    with _progress() as report:
        surveys = []
        for number in range(topic.partition_count):
            migration = PartitionMigration(
                topic, number, clock=SystemClock(), on_corrupt=options.on_corrupt
            )
            surveys.append(migration.survey())
            report(number, 0, 0)
        return surveys


def _await_compaction(bootstrap_server: str, extra: dict[str, str], options: _Options) -> None:
    """Wait until the broker has migrated its metadata partitions.

    It switches compaction on at the end.
    """
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + options.timeout_s
    admin = admin_client(bootstrap_server, extra)
    resource = ConfigResource(ConfigResource.Type.TOPIC, REMOTE_LOG_METADATA_TOPIC)
    while True:
        described = admin.describe_configs([resource])[resource].result(REQUEST_TIMEOUT_S)
        if "compact" in described["cleanup.policy"].value:
            return
        if clock.monotonic_s() > deadline_s:
            raise RequestTimedOutError(
                "the broker is still migrating, and continues; check again with --check"
                f" bootstrap-server={bootstrap_server} timeout_s={options.timeout_s}"
            )
        clock.wait(threading.Event(), _WATCH_INTERVAL_S)


def _set_audit_retention(bootstrap_server: str, extra: dict[str, str], options: _Options) -> None:
    if options.audit_retention_ms is None:
        return
    entry = ConfigEntry(
        "retention.ms",
        str(options.audit_retention_ms),
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        REMOTE_LOG_METADATA_AUDIT_TOPIC,
        incremental_configs=[entry],
    )
    admin = admin_client(bootstrap_server, extra)
    admin.incremental_alter_configs([resource])[resource].result(REQUEST_TIMEOUT_S)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, int], None]]:
    """A bar of metadata partitions on a terminal, with the records written to the current one."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    terminal = error_console()
    with Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal
    ) as bars:
        partitions = bars.add_task("metadata partitions read", total=None)
        records = bars.add_task("records written", total=None)

        def report(number: int, written: int, total: int) -> None:
            bars.update(partitions, completed=number + 1)
            bars.update(records, completed=written, total=total)

        yield report


def _print_surveys(surveys: Sequence[PartitionSurvey], options: _Options) -> None:
    rows = [
        _row(survey) for survey in surveys if survey.counts.without_key or survey.counts.with_key
    ]
    total: dict[str, Any] = {name: sum(row[name] for row in rows) for name in _COLUMNS[1:]}
    if options.as_json:
        for row in rows:
            print_json(row)
        print_json({"metadata_partition": None, **total})
        return
    print_rows(_COLUMNS, rows, as_json=False)
    console().print(
        f"\n{total['records']} records, {total['without_key']} of them without a key;"
        f" {total['live_segments']} live segments."
        f" {human_size(total['size'])}, about {human_size(total['size_compacted'])} compacted."
    )


def _row(survey: PartitionSurvey) -> dict[str, Any]:
    counts = survey.counts
    records = counts.without_key + counts.with_key
    size = counts.size_without_key + counts.size_with_key
    return {
        "metadata_partition": survey.number,
        "records": records,
        "without_key": counts.without_key,
        "tombstones": counts.tombstones,
        "live_segments": survey.live_segments,
        "states_to_write": survey.states_to_write,
        "tombstones_to_write": survey.tombstones_to_write,
        "size": size + records * _BATCH_OVERHEAD,
        "size_compacted": survey.size_compacted + survey.live_segments * _BATCH_OVERHEAD,
    }


def _print_done(options: _Options) -> None:
    if not options.as_json:
        console().print("\nThe topic is at level 1 and is being compacted.")
