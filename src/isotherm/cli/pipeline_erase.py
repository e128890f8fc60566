"""`isotherm pipeline erase`: erases records from a tiered topic, in place or in a copy, and proves
it."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import AsJson, ClientOptions, Registry, RegistryOption, parse_pairs
from isotherm.cli.output import console, error_console, human_size, print_json, print_rows
from isotherm.cli.pipeline_bucket import MaxBytes
from isotherm.cli.pipeline_options import (
    EXIT_FOUND,
    OptionalBootstrapServer,
    SourceOption,
    SparkOptions,
    TierPath,
    progress,
    source_texts,
    spark_session,
)
from isotherm.cli.pipeline_recovery import Recover, show_recovery
from isotherm.cli.point_in_time import time_ms
from isotherm.clock import Clock, SystemClock
from isotherm.errors import ConfigError, RequestTimedOutError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from isotherm.remote.erasure.certificate import ErasedTable, ErasureCertificate
    from isotherm.remote.storage.bucket_protection import BucketProtection
    from isotherm.spark.jobs.cost import Cost
    from isotherm.spark.jobs.erase import ErasureSettings, PartitionReport
    from isotherm.spark.jobs.erase_plan import ErasurePlan
    from isotherm.spark.jobs.erase_selection import Selector
    from isotherm.spark.jobs.erase_tables import OpenedTable
    from isotherm.spark.jobs.erase_tail import WaitingTail
    from isotherm.spark.options import SourceOptions
    from isotherm.spark.tables.open_table import TablePlace
    from isotherm.types import TopicIdPartition

_HOUR_MS = 3_600_000
_LOOK_INTERVAL_S, _LOOK_INTERVAL_MAX_S = 1.0, 30.0
_LOOK_GROWTH = 1.1
_UNREACHABLE_SHOWN_MAX = 20

Keys = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        metavar="FILE",
        help="Erase the records with these keys: a text file with a key on each line, CSV with a"
        " column key, JSON lines with a member key, or Parquet with a column key.",
    ),
]
KeysFormat = Annotated[
    str | None,
    typer.Option(
        help="text, csv, json or parquet. Without it the name's suffix decides.",
    ),
]
KeyEncoding = Annotated[
    str, typer.Option(help="How a key is written in the file: text, hex or base64.")
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Erase the records for which this is true: Spark's SQL over key, value, headers,"
        " timestamp, partition and offset.",
    ),
]
Value = Annotated[
    str,
    typer.Option(
        "--value",
        metavar="FORMAT",
        help="What `value` is in --where: raw, unchanged bytes; string, UTF-8; json, objects, as in"
        " value.user.id = 42; avro, protobuf or json-schema, after the id of a schema in"
        " --registry.",
    ),
]
Partitions = Annotated[
    str | None, typer.Option(metavar="N,N", help="Only in these partitions: 0,3,5-7.")
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="OFFSET|TIME",
        help="Only from this offset on, or from this time on (2026-01-31T12:00, UTC).",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(metavar="OFFSET|TIME", help="Only below this offset, or before this time."),
]
Action = Annotated[
    str,
    typer.Option(
        help="drop: the record goes. tombstone: its key stays, value and headers go. redact: the"
        " fields of --field in its JSON value become null.",
    ),
]
Field = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME",
        help="With --action redact: a field, such as user.name. May be given many times.",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="URL",
        help="Write a copy without the records to this place, and leave the source unchanged."
        " Without --to and --to-option the records are erased in place.",
    ),
]
ToOption = Annotated[
    list[str] | None,
    typer.Option(
        "--to-option",
        metavar="KEY=VALUE",
        help="A storage setting of the copy, such as key.prefix=erased/. Other settings are those"
        " of the source. May be given many times.",
    ),
]
Run = Annotated[
    bool, typer.Option("--run", help="Erase. Without it the plan and its cost are shown.")
]
KeepOldMs = Annotated[
    int,
    typer.Option(
        min=0,
        help="In place: the time that old segments stay after they are superseded, for readers that"
        " have planned with them. It may be 0.",
    ),
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="In place: wait until the broker has published the new segments and deleted the old"
        " ones, erase what is on brokers only now as it is tiered, and prove it.",
    ),
]
WaitS = Annotated[
    int, typer.Option(min=0, help="With --wait: the longest time, in seconds. 0 is no limit.")
]
Verify = Annotated[
    str | None,
    typer.Option(
        "--verify",
        metavar="CERTIFICATE",
        help="Check an earlier erasure again: a certificate's file, or the name of its run. Give"
        " the same records as then.",
    ),
]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="[FORMAT:]NAME[@WAREHOUSE]",
        help="Delete the rows of the records from this table of `isotherm pipeline table`, and from"
        " its dead letters. FORMAT is iceberg, delta or parquet. May be given many times.",
    ),
]
Warehouse = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The folder or bucket of the tables that name no other."),
]
Catalog = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="For Iceberg tables: a catalog of PyIceberg's."),
]
TableOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A property of the Iceberg catalog, or for Delta and Parquet a setting of the object"
        " store, as --to-option of `table`. May be given many times.",
    ),
]


@dataclass(frozen=True, slots=True)
class TablesOfTopics:
    """The tables from which rows are deleted."""

    table: Tables = None
    warehouse: Warehouse = None
    catalog: Catalog = None
    table_option: TableOption = None


@dataclass(frozen=True, slots=True)
class SelectedRecords:
    """The records to erase. All that is given applies."""

    keys: Keys = None
    keys_format: KeysFormat = None
    key_encoding: KeyEncoding = "text"
    where: Where = None
    value: Value = "raw"
    registry: Registry = None
    registry_option: RegistryOption = None
    partitions: Partitions = None
    from_: From = None
    until: Until = None


@with_groups
def erase(
    *,
    path: TierPath = None,
    bootstrap_server: OptionalBootstrapServer = None,
    selected: SelectedRecords,
    action: Action = "drop",
    field: Field = None,
    to: To = None,
    to_option: ToOption = None,
    run: Run = False,
    recover: Recover = False,
    verify: Verify = None,
    keep_old_ms: KeepOldMs = _HOUR_MS,
    wait: Wait = False,
    wait_s: WaitS = 0,
    tables: TablesOfTopics,
    max_bytes: MaxBytes = None,
    option: SourceOption = None,
    client: ClientOptions,
    spark_options: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Erase records from the history of a tiered topic, and prove it.

    Records of aborted transactions are erased too. Offsets, timestamps and headers of all other
    records stay. A topic of Isotherm is changed in place: the job stages segments, and the broker
    publishes them. With --to the job makes a copy, also of a Kafka cluster's bucket. Nothing is
    written without --run. A run ends with a certificate, which --verify checks again.

    isotherm pipeline erase -b broker:9092 --path s3://bucket/kafka -o subscribe=users --keys
    gone.txt

    Exit codes: 0 done · 1 failed, or refused by --max-bytes · 2 wrong options · 3 damage, or a
    matching record is left.
    """
    from isotherm.remote.storage.store_check import check_store
    from isotherm.spark.jobs import erase as job
    from isotherm.spark.jobs import rewrite_run
    from isotherm.spark.option_parsing import parse_options

    properties = client.properties
    options = parse_options(source_texts(path, option, bootstrap_server, properties))
    clock = SystemClock()
    erase_action, fields = _action(action, field)
    settings = job.settings_of(
        options,
        now_ms=clock.now_ms(),
        action=erase_action,
        fields=fields,
        keep_old_ms=keep_old_ms,
        to_url=to,
        to_storage=parse_pairs(to_option),
    )
    places = _table_places(tables)
    _check_tables(places, settings)
    if verify is None:
        rewrite_run.check_settings(settings, options)
    if settings.bucket is not None:
        check_store(settings.bucket, writes=False)
    if settings.target is not None:
        check_store(settings.target, writes=run)
    if recover:
        _recover(options, settings, run=run, as_json=as_json)
        return
    selector = _selector(selected)
    if verify is not None:
        with spark_session(spark_options) as spark:
            again = _Verification(verify, places, erases=run)
            _verify(spark, options, settings, selector, again, clock, as_json=as_json)
        return
    request = _Request(places, max_bytes, run, wait, wait_s, as_json)
    _plan_or_run(options, settings, selector, spark_options, request, clock)


@dataclass(frozen=True, slots=True)
class _Request:
    """What to do with the records that are selected."""

    places: list[TablePlace]
    max_bytes: int | None
    run: bool
    wait: bool
    wait_s: int
    as_json: bool


def _plan_or_run(
    options: SourceOptions,
    settings: ErasureSettings,
    selector: Selector,
    spark_options: SparkOptions,
    request: _Request,
    clock: Clock,
) -> None:
    from isotherm.remote.storage.bucket_protection import read_protection
    from isotherm.spark.jobs import erase as job
    from isotherm.spark.jobs.cost import check_cost
    from isotherm.spark.jobs.erase_plan import read_erasure_plan
    from isotherm.spark.jobs.erase_tables import count_rows, erased_offsets, open_tables

    with progress("reading metadata"):
        plan = read_erasure_plan(options, settings, selector)
        opened = open_tables(request.places, plan.unreachable, writes=request.run)
    with spark_session(spark_options) as spark:
        check_cost(job.cost_of_scan(spark, plan, selector, settings.fetch_bytes), request.max_bytes)
        with progress("finding the records") as show_step:
            matches = job.find_matches(spark, plan, selector, settings)
            cost = job.cost_of_run(spark, plan, matches, selector, settings)
            if request.run:
                check_cost(cost, request.max_bytes)
                certificate, reports = job.erase(
                    spark, plan, matches, selector, settings, show_step, opened
                )
            else:
                offsets = erased_offsets(matches.records, plan.pieces) if opened else {}
                rows = count_rows(spark, opened, offsets)
        matches.unpersist()
        if not request.run:
            protection = read_protection(settings.written, clock.now_ms())
            reports = job.report(plan, matches)
            _print_plan(plan, reports, cost, rows, protection, as_json=request.as_json)
            return
        if not request.as_json:
            _print_reports(reports)
            _print_undecoded(reports)
            _print_unreachable(plan)
            _print_protection(certificate.protection)
            for table in certificate.tables:
                console().print(f"table {table.name}: {table.deleted} rows deleted")
        if settings.in_place and not request.wait:
            error_console().print(
                "the broker publishes the staged segments at its next check; then --verify"
                f" {certificate.run} proves it"
            )
            _print_certificate(certificate, as_json=request.as_json)
            return
        waiting = _Waiting(clock, request.wait_s)
        certificate, left = _published(
            spark, options, settings, selector, certificate, plan, opened, waiting
        )
        certificate = _proved(spark, options, settings, selector, certificate, opened, waiting)
    _print_certificate(certificate, as_json=request.as_json)
    _end(certificate)
    _check_tails(left, request.wait_s)


def _check_tables(places: list[TablePlace], settings: ErasureSettings) -> None:
    from isotherm.remote.erasure.erased_piece import EraseAction

    if places and not settings.in_place:
        raise ConfigError(
            "a copy leaves the source as it is, and the tables are of the source"
            " options=--table,--to"
        )
    if places and settings.action is EraseAction.REDACT:
        raise ConfigError(
            "rows of tables are deleted, and a redaction keeps records options=--table,--action"
            " hint='redact the records without --table, and make the table anew after that'"
        )


def _recover(
    options: SourceOptions, settings: ErasureSettings, *, run: bool, as_json: bool
) -> None:
    from isotherm.spark.jobs import erase as job

    show_recovery(
        settings,
        options,
        run=run,
        as_json=as_json,
        hint="\n--recover --run does it; no run may still be in progress",
    )
    with progress("checking for runs without a proof"):
        unproved = job.unproved_runs(settings, options.selects_topic)
    for certificate in unproved:
        error_console().print(
            f"run {certificate.run} has no proof yet: --verify {certificate.run} with the same"
            " selection finishes it, or says what the run did not erase"
        )


@dataclass(frozen=True, slots=True)
class _Verification:
    """A certificate's file or the name of its run, and the tables. With `erases` rows that are left
    in them are deleted."""

    certificate: str
    places: list[TablePlace]
    erases: bool


def _verify(
    spark: SparkSession,
    options: SourceOptions,
    settings: ErasureSettings,
    selector: Selector,
    request: _Verification,
    clock: Clock,
    *,
    as_json: bool,
) -> None:
    from isotherm.spark.jobs import erase as job
    from isotherm.spark.jobs.erase_tables import open_tables

    certificate = _read_certificate(settings, request.certificate)
    owners = [partition.partition for partition in certificate.partitions]
    tables = open_tables(request.places, owners, writes=request.erases)
    with progress("reading everything again") as show_step:
        seen = job.prove(spark, options, settings, selector, certificate, clock.now_ms())
        seen = job.see_tables(
            spark, settings, seen, tables, erases=request.erases, progress=show_step
        )
    seen = job.see_old_objects(settings, seen, clock.now_ms())
    seen = job.see_local_copies(options, settings, seen)
    job.put_certificate(settings, seen)
    _print_certificate(seen, as_json=as_json)
    _end(seen)


def _published(
    spark: SparkSession,
    options: SourceOptions,
    settings: ErasureSettings,
    selector: Selector,
    certificate: ErasureCertificate,
    plan: ErasurePlan,
    tables: list[OpenedTable],
    waiting: _Waiting,
) -> tuple[ErasureCertificate, list[WaitingTail]]:
    """Wait until the broker has published. Then erase what was on brokers only when the run began,
    as it is tiered. Returns what is on brokers only at the time limit. A copy is complete as it
    is."""
    from isotherm.spark.jobs import erase as job
    from isotherm.spark.jobs.erase_plan import read_erasure_plan
    from isotherm.spark.jobs.erase_tail import waiting_tails

    if not settings.in_place:
        return certificate, []
    shown: list[str] = []
    while True:
        _wait_for_publication(settings, certificate, waiting)
        tails = waiting_tails(options, certificate, plan.log_ends)
        if not tails:
            return certificate, []
        texts = [str(tail) for tail in tails]
        if texts != shown:
            _print_tails(texts)
            shown = texts
        ready = _wait_for_tails(options, settings, tails, waiting)
        if not ready:
            return certificate, tails
        with progress("erasing from the tail") as show_step:
            part = read_erasure_plan(options, settings, selector).above(ready)
            selector = job.as_before(selector, certificate)
            matches = job.find_matches(spark, part, selector, settings)
            certificate, _ = job.erase(
                spark, part, matches, selector, settings, show_step, tables, certificate
            )
        matches.unpersist()


def _wait_for_publication(
    settings: ErasureSettings, certificate: ErasureCertificate, waiting: _Waiting
) -> None:
    from isotherm.spark.jobs.rewrite_run import unpublished_runs

    owners = [partition.partition for partition in certificate.partitions if partition.segments]
    with progress("waiting until the broker has published"):
        while unpublished_runs(settings, owners):
            waiting.once("published")


def _wait_for_tails(
    options: SourceOptions, settings: ErasureSettings, tails: list[WaitingTail], waiting: _Waiting
) -> dict[TopicIdPartition, int]:
    """The tails that are ready. None at the time limit."""
    from isotherm.spark.jobs.erase_tail import ready_tails

    with progress("waiting until the tail is tiered"):
        while not (ready := ready_tails(options, settings, tails)):
            if waiting.is_over:
                break
            waiting.once("tiered the tail")
    return ready


def _check_tails(tails: list[WaitingTail], wait_s: int) -> None:
    if tails:
        shown = "; ".join(map(str, tails[:_UNREACHABLE_SHOWN_MAX]))
        raise RequestTimedOutError(
            f"records are on brokers only, and were not erased waited_s={wait_s} tails='{shown}'"
            " hint='let the brokers roll these segments, and run the command again'"
        )


def _print_tails(tails: list[str]) -> None:
    for text in tails[:_UNREACHABLE_SHOWN_MAX]:
        error_console().print(f"on brokers only: {text}", markup=False, highlight=False)
    error_console().print(
        "the next record rolls an active segment after segment.ms or at segment.bytes;"
        " local.retention.ms and local.retention.bytes roll it without one"
    )


def _proved(
    spark: SparkSession,
    options: SourceOptions,
    settings: ErasureSettings,
    selector: Selector,
    certificate: ErasureCertificate,
    tables: list[OpenedTable],
    waiting: _Waiting,
) -> ErasureCertificate:
    """Prove the erasure, wait for the brokers, and store the certificate after each step."""
    from isotherm.spark.jobs import erase as job

    with progress("reading everything again") as show_step:
        certificate = job.prove(
            spark, options, settings, selector, certificate, waiting.clock.now_ms()
        )
        certificate = job.see_tables(
            spark, settings, certificate, tables, erases=True, progress=show_step
        )
    job.put_certificate(settings, certificate)
    with progress("waiting until the old segments are deleted"):
        while True:
            certificate = job.see_old_objects(settings, certificate, waiting.clock.now_ms())
            certificate = job.see_local_copies(options, settings, certificate)
            if not job.old_objects_left(certificate) and not job.local_copies_left(certificate):
                break
            waiting.once("deleted the old segments and local copies")
    job.put_certificate(settings, certificate)
    return certificate


class _Waiting:
    """Waits for a broker's steps, at most `wait_s` in all; 0 is no limit."""

    def __init__(self, clock: Clock, wait_s: int) -> None:
        self.clock = clock
        self._wait_s = wait_s
        self._deadline_s = clock.monotonic_s() + wait_s
        self._interval_s = _LOOK_INTERVAL_S
        self._never = threading.Event()

    @property
    def is_over(self) -> bool:
        return bool(self._wait_s) and self.clock.monotonic_s() >= self._deadline_s

    def once(self, step: str) -> None:
        """Raises RequestTimedOutError after the time limit. The broker goes on all the same."""
        if self.is_over:
            raise RequestTimedOutError(
                f"the broker has not {step} yet waited_s={self._wait_s} hint='--verify proves it"
                " later'"
            )
        self.clock.wait(self._never, self._interval_s)
        self._interval_s = min(self._interval_s * _LOOK_GROWTH, _LOOK_INTERVAL_MAX_S)


def _action(text: str, fields: list[str] | None) -> Any:
    from isotherm.remote.erasure.erased_piece import EraseAction
    from isotherm.remote.erasure.redaction import parse_field

    try:
        action = EraseAction(text)
    except ValueError:
        actions = ", ".join(erase_action.value for erase_action in EraseAction)
        raise typer.BadParameter(f"one of {actions}: {text}", param_hint="--action") from None
    if (action is EraseAction.REDACT) != bool(fields):
        raise typer.BadParameter(
            "--action redact takes one --field or more, and no other action does",
            param_hint="--field",
        )
    try:
        return action, tuple(parse_field(field) for field in fields or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--field") from None


def _selector(selected: SelectedRecords) -> Selector:
    from isotherm.spark.jobs.erase_keys import KEY_ENCODINGS, KEY_FORMATS, read_keys
    from isotherm.spark.jobs.erase_selection import Selector
    from isotherm.spark.tables.schema_registry import registry_settings
    from isotherm.spark.tables.value_formats import RAW, formats

    if selected.keys is None and selected.where is None:
        raise typer.BadParameter(
            "name the records with --keys or --where", param_hint="--keys / --where"
        )
    if selected.keys_format not in (None, *KEY_FORMATS):
        raise typer.BadParameter(f"one of {', '.join(KEY_FORMATS)}", param_hint="--keys-format")
    if selected.key_encoding not in KEY_ENCODINGS:
        raise typer.BadParameter(f"one of {', '.join(KEY_ENCODINGS)}", param_hint="--key-encoding")
    registered = registry_settings(selected.registry, parse_pairs(selected.registry_option))
    value_format = formats(RAW, selected.value, registered).value
    if selected.where is None and value_format.name != RAW:
        raise typer.BadParameter("it is for --where", param_hint="--value")
    keys = None
    if selected.keys is not None:
        keys = read_keys(selected.keys, selected.keys_format, selected.key_encoding)
    start_offset, start_ms = _place(selected.from_)
    end_offset, end_ms = _place(selected.until)
    return Selector(
        keys=keys,
        where=selected.where,
        partitions=_numbers(selected.partitions),
        start_offset=start_offset,
        end_offset=end_offset,
        start_ms=start_ms,
        end_ms=end_ms,
        value_format=value_format,
    )


def _table_places(tables: TablesOfTopics) -> list[TablePlace]:
    from isotherm.spark.tables.open_table import TABLE_FORMATS, TablePlace

    places = []
    for text in tables.table or ():
        named, _, warehouse = text.partition("@")
        table_format, _, name = named.rpartition(":")
        if table_format not in ("", *TABLE_FORMATS) or not name:
            raise typer.BadParameter(
                f"a name, or FORMAT:NAME with one of {', '.join(TABLE_FORMATS)}: {text}",
                param_hint="--table",
            )
        places.append(
            TablePlace(
                table_format or TABLE_FORMATS[0],
                warehouse or tables.warehouse,
                name,
                tables.catalog if table_format in ("", TABLE_FORMATS[0]) else None,
                parse_pairs(tables.table_option),
            )
        )
    return places


def _place(text: str | None) -> tuple[int | None, int | None]:
    """An offset, or a time in milliseconds."""
    if text is None:
        return None, None
    if text.isascii() and text.isdigit():
        return int(text), None
    return None, time_ms(text)


def _numbers(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise typer.BadParameter(f"numbers such as 0,3,5-7: {text}", param_hint="--partitions")
        numbers |= set(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _read_certificate(settings: ErasureSettings, text: str) -> ErasureCertificate:
    from isotherm.remote.erasure.certificate import decode_certificate
    from isotherm.spark.jobs.erase import open_certificates

    file = Path(text)
    try:
        return decode_certificate(file.read_bytes())
    except FileNotFoundError:
        if file.name != text:
            raise ConfigError(f"there is no certificate path={text}") from None
    except OSError as error:
        raise ConfigError(f"the certificate cannot be read path={text} reason='{error}'") from None
    return open_certificates(settings).get(text.removesuffix(".json"))


def _print_plan(
    plan: ErasurePlan,
    reports: list[PartitionReport],
    cost: Cost,
    tables: list[ErasedTable],
    protection: BucketProtection,
    *,
    as_json: bool,
) -> None:
    rows = [partition.as_row() for partition in reports]
    shown = ("topic", "partition", "segments", "matching", "records", "bytes", "undecoded")
    if as_json:
        print_json(
            {
                "cost": cost.as_row(),
                "bucket": {
                    "versioning": protection.versioning,
                    "replication": protection.replication,
                    "objectLock": protection.object_lock,
                },
                "tables": [{"name": table.name, "rows": table.left} for table in tables],
                "partitions": [
                    {
                        **{name: row[name] for name in shown},
                        "unreachable": [
                            {
                                "start_offset": each.start_offset,
                                "end_offset": each.end_offset,
                                "reason": each.reason,
                            }
                            for each in plan.unreachable[report.partition]
                        ],
                    }
                    for row, report in zip(rows, reports, strict=True)
                ],
            }
        )
        return
    print_rows(shown[:-1], rows, as_json=False)
    _print_undecoded(reports)
    _print_unreachable(plan)
    _print_protection(protection)
    for table in tables:
        console().print(f"table {table.name}: {table.left} rows in its newest and older states")
    console().print(
        f"\nwould read {human_size(cost.bytes_read)} in {cost.gets} GETs and store {cost.puts}"
        f" objects at most, in about {cost.seconds():.0f} s; --run does it"
    )


def _print_reports(reports: list[PartitionReport]) -> None:
    columns = (
        "topic", "partition", "segments", "matching", "records", "changed", "bytes", "bytes_after",
    )  # fmt: skip
    print_rows(columns, [report.as_row() for report in reports], as_json=False)


def _print_undecoded(reports: list[PartitionReport]) -> None:
    for report in reports:
        if report.undecoded is not None:
            console().print(
                f"not decoded, and so not selected: {report.undecoded.count} values of"
                f" {report.partition}, the first one at offset {report.undecoded.first}"
            )


def _print_unreachable(plan: ErasurePlan) -> None:
    lines = [
        f"not reached: {partition} offsets {each.start_offset} to {each.end_offset - 1}:"
        f" {each.reason}"
        for partition, unreachable in plan.unreachable.items()
        for each in unreachable
    ]
    for line in lines[:_UNREACHABLE_SHOWN_MAX]:
        console().print(line)
    if len(lines) > _UNREACHABLE_SHOWN_MAX:
        console().print(f"not reached: {len(lines) - _UNREACHABLE_SHOWN_MAX} more; --json has all")


def _print_protection(protection: BucketProtection) -> None:
    for line in protection.lines():
        console().print(f"the bucket: {line}", soft_wrap=True)


def _print_certificate(certificate: ErasureCertificate, *, as_json: bool) -> None:
    from isotherm.remote.erasure.certificate import encode_certificate

    if as_json:
        print_json(json.loads(encode_certificate(certificate)))
        return
    console().print(f"\ncertificate of run {certificate.run}, in the bucket:")
    console().print(encode_certificate(certificate).decode(), markup=False, highlight=False)


def _end(certificate: ErasureCertificate) -> None:
    """Exit with 3 if a matching record is left."""
    from isotherm.spark.jobs.erase import old_objects_left

    objects = old_objects_left(certificate)
    if certificate.left or objects or certificate.rows_left:
        error_console().print(
            f"matching records are left records={certificate.left} old_segments={objects}"
            f" rows_of_tables={certificate.rows_left}"
        )
        raise typer.Exit(EXIT_FOUND)
