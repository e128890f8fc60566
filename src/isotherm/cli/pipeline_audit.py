"""`isotherm pipeline audit`: the health of the remote tier, from its metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.client import REQUEST_TIMEOUT_S, admin_client, one_line_errors, unknown_topic
from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    AsJson,
    ClientOptions,
    parse_pairs,
)
from isotherm.cli.output import console, dollars, human_row, print_json, print_rows
from isotherm.cli.pipeline_bucket import MaxBytes
from isotherm.cli.pipeline_metadata import (
    DEFAULT_TOPIC,
    Dump,
    LogDirs,
    MetadataPlace,
    MetadataTopicName,
    StoreOption,
    check_store_options,
    is_small_metadata,
    metadata_log,
)
from isotherm.cli.pipeline_options import (
    EXIT_FOUND,
    TABLE_ROWS_MAX,
    OptionalBootstrapServer,
    SparkOptions,
    job_session,
    progress,
    spark_session,
)
from isotherm.cli.pipeline_replay import print_findings
from isotherm.cli.point_in_time import time_ms
from isotherm.cli.topic_storage import Price
from isotherm.clock import SystemClock
from isotherm.errors import ConfigError
from isotherm.storage_view.prices import DEFAULT_PRICE, PriceList, monthly_cost, price_list

if TYPE_CHECKING:
    from isotherm.spark.jobs.audit import Retention

_DAYS_SHOWN = 7
# The columns that fit into a table on a terminal.
_ONLY_JSON = re.compile("topic_id|.*_p95|(life|deletion)_s_max|event_timestamp_ms|max_timestamp_ms")
_FAULTS = ("orphans", "coverage", "retention")


_History = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="NAME",
        help="The topic with every event, if the metadata topic is compacted:"
        " __remote_log_metadata_audit.",
    ),
]
_Retention = Annotated[
    list[str] | None,
    typer.Option(
        "--retention-ms",
        metavar="TOPIC=MS",
        help="A topic's retention.ms. May be given many times. The default is the cluster's value.",
    ),
]
_Now = Annotated[
    str | None,
    typer.Option("--now", metavar="TIME", help="Compute ages at this time; now by default."),
]
_GraceMs = Annotated[
    int,
    typer.Option(
        metavar="MS",
        help="The age from which an unfinished state is a leftover, and how long retention.ms may"
        " be over.",
    ),
]
_Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Write one HTML file with plots as well."),
]


@with_groups
def audit(
    *,
    bootstrap_server: OptionalBootstrapServer = None,
    log_dir: LogDirs = None,
    dump: Dump = None,
    topic: MetadataTopicName = DEFAULT_TOPIC,
    history: _History = None,
    retention: _Retention = None,
    now: _Now = None,
    grace_ms: _GraceMs = 3_600_000,
    report: _Report = None,
    price: Price = DEFAULT_PRICE,
    max_bytes: MaxBytes = None,
    as_json: AsJson = False,
    spark_options: SparkOptions,
    client: ClientOptions,
    option: StoreOption = None,
) -> None:
    """Report on uploads, deletions and the metadata topic itself.

    The report has durations, failed and retried uploads per partition; leftover segments by cause;
    gaps and overlaps; segments beyond retention; bytes and costs; the topic's growth by day and its
    forecast.

    isotherm pipeline audit -b localhost:9092 --report audit.html

    Exit codes: 0 clean · 1 failed · 2 wrong options · 3 leftovers, gaps, overlaps, segments beyond
    retention, or damage of the topic.
    """
    if report is not None:
        _check_report_place(report)
    prices = price_list(price)
    properties = client.properties
    place = MetadataPlace(bootstrap_server, properties, log_dir, dump, option)
    check_store_options(place)
    log = metadata_log(place, topic, max_bytes=max_bytes)
    past = None if history is None else metadata_log(place, history, max_bytes=max_bytes)
    now_ms = SystemClock().now_ms() if now is None else time_ms(now)
    from isotherm.spark.jobs.audit import Audit, AuditSettings

    limits = _limits(retention)
    if bootstrap_server is not None:
        limits = _retentions(bootstrap_server, properties, limits) | limits
    settings = AuditSettings(now_ms, grace_ms, limits)
    logs = (log,) if past is None else (log, past)
    is_small = is_small_metadata(spark_options, *logs)
    with (
        spark_session(spark_options, is_small=is_small) as spark,
        progress("reading metadata") as show_step,
        Audit(job_session(spark, spark_options, is_small=is_small), log, settings, past) as job,
    ):
        findings = [row.asDict() for row in job.replay.findings.collect()]
        tables: dict[str, list[dict[str, Any]]] = {}
        for name, frame in job.tables.items():
            show_step(f"table {name}")
            tables[name] = [row.asDict() for row in frame.collect()]
    tables["money"] = money_rows(tables, prices)
    print_tables(tables, as_json=as_json)
    if report is not None:
        _write_report(report, f"Audit of {topic}", now_ms, tables, findings)
    if print_findings(findings, as_json=as_json) or any(tables[name] for name in _FAULTS):
        raise typer.Exit(EXIT_FOUND)


def print_tables(tables: dict[str, list[dict[str, Any]]], *, as_json: bool) -> None:
    """Print all tables. As JSON each row names its table."""
    for name, rows in tables.items():
        if as_json:
            for row in rows:
                print_json({"table": name, **row})
            continue
        if not rows:
            console().print(f"\n{name}: nothing")
            continue
        rows = [human_row(row) for row in _in_dollars(rows)]
        # Days are sorted oldest first: show the newest.
        shown = rows[-_DAYS_SHOWN:] if name == "growth" else rows[:TABLE_ROWS_MAX]
        columns = [column for column in rows[0] if not _ONLY_JSON.fullmatch(column)]
        print_rows(columns, shown, as_json=False, title=f"\n{name}")
        if len(rows) > len(shown):
            console().print(f"{len(shown)} of {len(rows)} rows; --json prints them all.")


def money_rows(tables: dict[str, list[dict[str, Any]]], prices: PriceList) -> list[dict[str, Any]]:
    """The monthly costs of segments' logs: of all finished segments, of leftovers by cause, and of
    segments beyond retention. The price is the mean price for all finished segments. Leftovers may
    be finished segments, so the rows overlap."""
    stored = {"finished": [(row["segments"], row["log_bytes"]) for row in tables["sizes"]]}
    for row in tables["orphans"]:
        size = row["size_in_bytes"] or 0  # None if the segment's start is not known
        stored.setdefault(f"left over: {row['cause']}", []).append((1, size))
    beyond = [(1, row["size_in_bytes"]) for row in tables["retention"]]
    if beyond:
        stored["beyond retention"] = beyond
    price = prices.mean_price(sum(size for _, size in stored["finished"]))
    return [
        {
            "stored": name,
            "segments": sum(count for count, _ in sizes),
            "bytes": sum(size for _, size in sizes),
            "cost_per_month": round(monthly_cost(sum(size for _, size in sizes), price), 6),
        }
        for name, sizes in stored.items()
    ]


def _in_dollars(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows for people, with costs as texts."""
    name = "cost_per_month"
    return [{**row, name: dollars(row[name])} if name in row else row for row in rows]


def _write_report(
    path: Path, title: str, now_ms: int, tables: dict[str, Any], problems: list[dict[str, Any]]
) -> None:
    from isotherm.spark.audit_report import render

    shown = {name: _in_dollars(rows) for name, rows in tables.items()}
    try:
        path.write_text(render(title, now_ms, shown, problems), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written path={path}") from error


def _check_report_place(path: Path) -> None:
    """Raise ConfigError now for what would fail after the job."""
    if path.is_dir() or not path.parent.is_dir():
        reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ConfigError(
            f"the report cannot be written option=--report path={path} reason={reason!r}"
        )


def _limits(texts: list[str] | None) -> dict[str, Retention]:
    from isotherm.spark.jobs.audit import Retention

    try:
        return {topic: Retention(ms=int(text)) for topic, text in parse_pairs(texts).items()}
    except ValueError:
        raise ConfigError(
            f"not TOPIC=MILLISECONDS option=--retention-ms value={','.join(texts or ())}"
        ) from None


def _retentions(
    bootstrap_server: str, extra: dict[str, str], named: Iterable[str]
) -> dict[str, Retention]:
    """The retention of the cluster's tiered topics, from their configuration. Raises
    UnknownTopicOrPartitionError if it has none of the name of one of `named`."""
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    from isotherm.spark.jobs.audit import Retention

    admin = admin_client(bootstrap_server, extra)
    with one_line_errors(bootstrap_server):
        names = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        for name in named:
            if name not in names:
                raise unknown_topic(name, names)
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        if not resources:
            return {}
        answers = admin.describe_configs(resources)
        configs = {
            resource.name: answers[resource].result(REQUEST_TIMEOUT_S) for resource in resources
        }
    return {
        name: Retention(int(config["retention.ms"].value), int(config["retention.bytes"].value))
        for name, config in configs.items()
        if config["remote.storage.enable"].value == "true"
    }
