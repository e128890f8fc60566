"""`isotherm topics describe-storage`: shows where a topic's bytes are, what is late, and what
they cost.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.client import one_line_errors, unknown_topic
from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    ClientOptions,
)
from isotherm.cli.output import (
    Quantity,
    console,
    dollars,
    error_console,
    human_size,
    print_json,
    print_rows,
)
from isotherm.cli.pipeline_metadata import StoreOption, store_settings
from isotherm.clock import SystemClock
from isotherm.printable import printable
from isotherm.storage_view.prices import DEFAULT_PRICE, price_list

if TYPE_CHECKING:
    from isotherm.console.watched_metrics import MetricsLook
    from isotherm.storage_view.cluster_storage import TopicStorage
    from isotherm.storage_view.rows import Row

Price = Annotated[
    str,
    typer.Option(
        metavar="NAME|DOLLARS|FILE",
        help="The price of a GiB of the remote tier for a month: s3-standard, s3-standard-ia,"
        " s3-glacier-instant, gcs-standard, azure-hot, dollars, or a price list in TOML"
        " (docs/console.md).",
    ),
]
BucketPath = Annotated[
    str | None,
    typer.Option(
        "--path",
        metavar="URL",
        help="Take the remote segments from the bucket (s3://bucket/prefix, a folder) instead of"
        " the metadata topic: for a cluster with a metadata manager of another kind.",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="A broker's metrics for Prometheus (http://broker:9404/metrics), which tell its errors"
        " and why copies fail. May be given many times.",
    ),
]
MetricsLogin = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A file with the NAME:PASSWORD of the metrics (HTTP basic)."),
]

_OFFSETS = ["partition", "log_start", "local_log_start", "last_tiered", "high_watermark"]
_SIZES = ["partition", "local", "remote", "overlap", "total", "segments", "cost_per_month"]
_LAGS = [
    "partition", "copy_lag_offsets", "copy_lag", "copy_lag_age", "deletion_lag_segments",
    "deletion_lag", "deletion_lag_age", "missing_offsets",
]  # fmt: skip
_UNKNOWN = Quantity("unknown")
_UNITS_OF_TIME = (("d", 86_400), ("h", 3_600), ("min", 60))


@with_groups
def describe_storage(
    *,
    topic: Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    price: Price = DEFAULT_PRICE,
    path: BucketPath = None,
    option: StoreOption = None,
    metrics: Metrics = None,
    metrics_login: MetricsLogin = None,
    as_json: AsJson = False,
    client: ClientOptions,
) -> None:
    """Show the bytes of a topic's partitions in each tier, the lags of copies and deletions, and
    the cost.

    Works with Isotherm and with any Kafka cluster with tiered storage. A byte that both tiers hold
    is in `local`, in `remote` and in `overlap`, and once in `total`. The copy lag leaves out
    up to segment.bytes for the active segment, which is never copied. Its age is that of the newest
    record in the remote tier. It is unknown through a read replica if the leader has more than the
    tier: the replica does not have the leader's files.
    """
    from isotherm.console.topic_answers import topic_problems
    from isotherm.console.watched_metrics import WatchedMetrics, metrics_addresses
    from isotherm.storage_view.cluster_storage import StorageReader
    from isotherm.storage_view.remote_segment_sources import open_bucket_source
    from isotherm.storage_view.rows import partition_row, topic_row

    prices = price_list(price)
    extra = client.properties
    wants_topic = topic.__eq__
    source = None if path is None else open_bucket_source(store_settings(path, option), wants_topic)
    addresses, clock = metrics_addresses(metrics or (), metrics_login), SystemClock()
    with (
        closing(WatchedMetrics(addresses, clock, 0)) as watched,
        one_line_errors(bootstrap_server),
        StorageReader(
            {"bootstrap.servers": bootstrap_server, **extra},
            clock,
            wants_topic=wants_topic,
            source=source,
        ) as reader,
    ):
        storage = reader.read()
        if topic not in storage.topics:
            raise unknown_topic(topic, reader.topic_names())
        look = watched.look()
    stored = storage.topics[topic]
    mean_price = prices.mean_price(stored.sums.remote_bytes)
    rows = [
        {"topic": topic, **partition_row(partition, mean_price)} for partition in stored.partitions
    ]
    total = topic_row(stored, mean_price)
    signs = {} if look is None else look.copy_signs
    problems = topic_problems(stored, storage.read_at_ms, signs)
    for line in silence_lines(look):
        error_console().print(line, soft_wrap=True)
    if as_json:
        for row in rows:
            print_json(row)
        print_json({**total, "partition": None, "problems": problems})
        return
    for problem in problems:
        console().print(f"{problem_line(problem)}\n", style="bold red")
    _print_tables(stored, rows, total)


def problem_line(problem: Row) -> str:
    """A row of `storage_problems` as one line."""
    parts = [problem["topic"], problem["cause"]]
    if problem["partitions"]:
        parts.append(f"partition {', '.join(map(str, problem['partitions']))}")
    if problem["bytes"] is not None:
        parts.append(human_size(problem["bytes"]))
    return f"{', '.join(part for part in parts if part)}: {problem['text']}"


def silence_lines(look: MetricsLook | None) -> list[str]:
    """A line for each address of --metrics that does not answer: what its broker counts is
    unknown."""
    silent = () if look is None else look.errors["unanswered"]
    return [printable(f"no metrics from {row['url']}: {row['reason']}") for row in silent]


def _print_tables(stored: TopicStorage, rows: list[Row], total: Row) -> None:
    parts = [*rows, {**total, "partition": "all"}] if len(rows) > 1 else rows
    offsets = [
        {
            **row,
            "log_start": row.get("log_start_offset"),
            "local_log_start": row.get("local_log_start_offset"),
            "last_tiered": row.get("last_tiered_offset"),
        }
        for row in rows
    ]
    print_rows(_OFFSETS, offsets, as_json=False, title="offsets")
    print_rows(_SIZES, map(_size_cells, parts), as_json=False, title="\nbytes")
    print_rows(_LAGS, map(_lag_cells, parts), as_json=False, title="\nlag")
    for row in rows:
        if row.get("copying_segments"):
            console().print(f"\npartition {row['partition']}: {copying_text(row)}")
        if "error" in row:
            console().print(f"\npartition {row['partition']} is left out: {row['error']}")
    if not stored.state.is_tiered and stored.state.settings_error is None:
        console().print("\nthe topic is not tiered: remote.storage.enable=false")


def _size_cells(row: Row) -> dict[str, Any]:
    if "error" in row:
        return {"partition": row["partition"]}
    return {
        "partition": row["partition"],
        **{
            name: human_size(row[f"{name}_bytes"])
            for name in ("local", "remote", "overlap", "total")
        },
        "segments": row["remote_segments"],
        "cost_per_month": dollars(row["cost_per_month"]),
    }


def _lag_cells(row: Row) -> dict[str, Any]:
    if "error" in row:
        return {"partition": row["partition"]}
    lag_offsets = row["copy_lag_offsets"]
    return {
        **row,
        "copy_lag_offsets": _UNKNOWN if lag_offsets is None else lag_offsets,
        "copy_lag": size_text(row["copy_lag_bytes"]),
        "copy_lag_age": age_text(row["copy_lag_s"]),
        "deletion_lag": human_size(row["deletion_lag_bytes"]),
        "deletion_lag_age": age_text(row["deletion_lag_s"]),
    }


def copying_text(row: Row) -> str:
    """Of a row or of its sums: the copies in progress, and the time since the oldest began."""
    count = row["copying_segments"]
    words = "1 segment is" if count == 1 else f"{count} segments are"
    return f"{words} being copied, since {age_text(row['copying_s'])}"


def size_text(size: int | None) -> Quantity:
    """As `human_size`; None -> 'unknown'."""
    return _UNKNOWN if size is None else human_size(size)


def age_text(seconds: float | None) -> Quantity:
    """90.0 -> '1.5 min'; None -> 'unknown'."""
    if seconds is None:
        return _UNKNOWN
    for unit, size in _UNITS_OF_TIME:
        if seconds >= size:
            return Quantity(f"{seconds / size:.1f} {unit}")
    return Quantity(f"{seconds:.0f} s")
