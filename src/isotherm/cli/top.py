"""`isotherm top`: shows the console's overview in a terminal, and updates it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    BootstrapServer,
    ClientOptions,
)
from isotherm.cli.output import console, human_size
from isotherm.cli.topic_storage import (
    Metrics,
    MetricsLogin,
    Price,
    age_text,
    copying_text,
    problem_line,
    silence_lines,
    size_text,
)
from isotherm.clock import SystemClock
from isotherm.errors import BrokerUnreachableError
from isotherm.storage_view.prices import DEFAULT_PRICE, PriceList, monthly_cost, price_list

if TYPE_CHECKING:
    from isotherm.console.watched_cluster import Look, WatchedCluster
    from isotherm.console.watched_metrics import MetricsLook, WatchedMetrics
    from isotherm.storage_view.cluster_storage import ClusterStorage, TopicStorage
    from isotherm.storage_view.partition_storage import StorageSums

_BAR_WIDTH = 24
_NARROW_BAR_WIDTH = 10
# On a narrower terminal some columns are left out.
_WIDTH_OF_ALL_COLUMNS = 130
_NAME_WIDTH_MIN = 12
_NARROW = ("topic", "where", "in all", "remote", "copy lag", "missing")
_BLOCK = "█"
_COLOURS = {"local": "yellow", "both": "magenta", "remote": "blue"}
# Lines of the screen above and below the rows of topics.
_OTHER_LINES = 6
_SCREEN_LINES_MIN = 3
_PROBLEMS_MAX = 5


@with_groups
def top(
    *,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    interval_s: Annotated[
        float, typer.Option(min=1, help="The time between two reads of the cluster, in seconds.")
    ] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Print all topics once, and end.")] = False,
    price: Price = DEFAULT_PRICE,
    metrics: Metrics = None,
    metrics_login: MetricsLogin = None,
    client: ClientOptions,
) -> None:
    """Show the bytes of a cluster's topics in each tier, the largest topic first. It ends with
    Ctrl+C.

    Works with Isotherm and with any Kafka cluster with tiered storage. `isotherm topics
    describe-storage` explains the columns.
    """
    from isotherm.console.watched_metrics import WatchedMetrics, metrics_addresses

    prices = price_list(price)
    extra = client.properties
    properties = {"bootstrap.servers": bootstrap_server, **extra}
    addresses = metrics_addresses(metrics or (), metrics_login)
    with (
        _watched(properties, interval_s) as cluster,
        closing(WatchedMetrics(addresses, SystemClock(), interval_s)) as watched,
    ):
        first = cluster.look()
        if first.content is None:
            raise BrokerUnreachableError(first.error or "the cluster does not answer")
        if once:
            shown = screen(first, prices, width=console().width, metrics=watched.look())
            console().print(shown)
            return
        _follow(cluster, watched, prices, interval_s)


@contextmanager
def _watched(properties: dict[str, str], interval_s: float) -> Iterator[WatchedCluster]:
    from isotherm.console.watched_cluster import WatchedCluster
    from isotherm.storage_view.cluster_storage import StorageReader

    clock = SystemClock()
    with closing(
        WatchedCluster(lambda: StorageReader(properties, clock), clock, interval_s)
    ) as cluster:
        yield cluster


def _follow(
    cluster: WatchedCluster, watched: WatchedMetrics, prices: PriceList, interval_s: float
) -> None:
    clock, never = SystemClock(), threading.Event()
    terminal = Console(highlight=False)
    try:
        with Live(console=terminal, screen=terminal.is_terminal, auto_refresh=False) as live:
            while True:
                rows_max = max(_SCREEN_LINES_MIN, terminal.height - _OTHER_LINES)
                metrics = watched.look()
                shown = screen(cluster.look(), prices, rows_max, terminal.width, metrics)
                live.update(shown, refresh=True)
                clock.wait(never, interval_s)
    except KeyboardInterrupt:
        return


def screen(
    look: Look[ClusterStorage],
    prices: PriceList,
    rows_max: int | None = None,
    width: int = _WIDTH_OF_ALL_COLUMNS,
    metrics: MetricsLook | None = None,
) -> RenderableType:
    """The whole screen. It has the `rows_max` largest topics, or all of them with None. After a
    failed read it shows the last storage that was read. The problems that it names are those of the
    console."""
    from isotherm.console.topic_answers import storage_problems

    assert look.content is not None
    price = prices.mean_price(look.content.remote_bytes)
    topics = [
        topic for topic in look.content.topics.values() if not topic.state.name.startswith("__")
    ]
    topics.sort(key=lambda row: (-row.sums.total_bytes, row.state.name))
    parts: list[RenderableType] = [_summary(look.content, price)]
    if look.error is not None:
        parts.append(Text(f"the cluster does not answer; old numbers: {look.error}", "bold red"))
    silent = silence_lines(metrics)
    parts += [Text(line, "bold red") for line in silent[:_PROBLEMS_MAX]]
    if (more := len(silent) - _PROBLEMS_MAX) > 0:
        parts.append(Text(f"no metrics from {more} more brokers", "bold red"))
    problems = storage_problems(look.content, {} if metrics is None else metrics.copy_signs)
    parts += [Text(problem_line(problem), "bold red") for problem in problems[:_PROBLEMS_MAX]]
    if len(problems) > _PROBLEMS_MAX:
        parts.append(Text(f"{len(problems) - _PROBLEMS_MAX} more problems", "bold red"))
    parts.append(_topics(topics[:rows_max], price, is_narrow=width < _WIDTH_OF_ALL_COLUMNS))
    left_out = len(topics) - len(topics[:rows_max])
    if left_out:
        parts.append(Text(f"{left_out} more, which are smaller; --once prints all", "dim"))
    return Group(*parts)


def _summary(storage: ClusterStorage, price: float) -> Text:
    from isotherm.storage_view.partition_storage import added

    sums = [topic.sums for topic in storage.topics.values()]
    total, remote = (
        sum(topic_sums.total_bytes for topic_sums in sums),
        sum(topic_sums.remote_bytes for topic_sums in sums),
    )
    missing = sum(topic_sums.missing_offsets for topic_sums in sums)
    lost = [str(broker.broker_id) for broker in storage.brokers if broker.error is not None]
    text = Text.assemble(
        *((_BLOCK + kind + " ", colour) for kind, colour in _COLOURS.items()),
        f" cluster {storage.cluster_id}: ",
        (human_size(total), "bold"),
        " in all, ",
        (human_size(remote), "bold"),
        f" remote, ${monthly_cost(remote, price):.2f} a month",
    )
    copying = added(sums)
    if copying.copying_segments:
        text.append(f", {copying_text(asdict(copying))}")
    if missing:
        text.append(f", {missing} offsets missing", "bold red")
    if lost:
        text.append(f", no answer from broker {', '.join(lost)}", "bold red")
    return text


def _topics(topics: list[TopicStorage], price: float, *, is_narrow: bool) -> Table:
    bar_width = _NARROW_BAR_WIDTH if is_narrow else _BAR_WIDTH
    rows = [_cells(topic, price, bar_width) for topic in topics]
    table = Table(header_style="bold", show_edge=False, box=None, padding=(0, 1))
    names = _NARROW if is_narrow else tuple(rows[0]) if rows else ()
    for name in names:
        is_left = name in ("topic", "where")
        table.add_column(
            name,
            justify="left" if is_left else "right",
            no_wrap=name != "topic",
            min_width=_NAME_WIDTH_MIN if name == "topic" else None,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _cells(topic: TopicStorage, price: float, bar_width: int) -> dict[str, Text | str]:
    sums, is_tiered = topic.sums, topic.state.is_tiered
    return {
        "topic": topic.state.name,
        "where": tier_bar(sums, bar_width),
        "in all": human_size(sums.total_bytes),
        "local": human_size(sums.local_bytes),
        "remote": human_size(sums.remote_bytes),
        "copy lag": size_text(sums.copy_lag_bytes) if is_tiered else "not tiered",
        "behind by": age_text(sums.copy_lag_s) if is_tiered else "",
        "deletion lag": human_size(sums.deletion_lag_bytes),
        "missing": Text(str(sums.missing_offsets), "bold red" if sums.missing_offsets else ""),
        "a month": f"${monthly_cost(sums.remote_bytes, price):.2f}",
    }


def tier_bar(sums: StorageSums, width: int) -> Text:
    """A bar with the shares of the tiers. A tier with a byte has at least one block."""
    parts = {
        "local": sums.local_bytes - sums.overlap_bytes,
        "both": sums.overlap_bytes,
        "remote": sums.total_bytes - sums.local_bytes,
    }
    if not sums.total_bytes:
        return Text("·" * width, "dim")
    widths = {
        kind: max(1, round(width * size / sums.total_bytes)) if size else 0
        for kind, size in parts.items()
    }
    widest = max(widths, key=lambda kind: widths[kind])
    widths[widest] += width - sum(widths.values())
    return Text.assemble(*((_BLOCK * count, _COLOURS[kind]) for kind, count in widths.items()))
