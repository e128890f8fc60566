"""The screen of `isotherm top`, for a scripted cluster."""

from __future__ import annotations

import io
from contextlib import closing

from rich.console import Console, RenderableType

from isotherm.cli.top import screen, tier_bar
from isotherm.console.watched_cluster import Look
from isotherm.console.watched_metrics import WatchedMetrics, metrics_addresses
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.storage_view.prices import price_list
from isotherm.testing.sim_clock import SimClock
from tests.support.scripted_cluster import ScriptedCluster, local_tier, remote_segment

MIB = 1 << 20
ONE_DOLLAR = price_list("1")


def cluster() -> ScriptedCluster:
    """`large` is half remote and half in both tiers; `small` is local."""
    made = ScriptedCluster()
    made.add("small", [], local_tier(0, 0, 10, 1000))
    segments = [remote_segment(n + 1, n * 10, n * 10 + 9) for n in range(4)]
    made.add("large", segments, local_tier(0, 20, 40, 2 * MIB))
    made.add("__internal", [], local_tier(0, 0, 10, 50))
    return made


def printed(shown: RenderableType) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=200).print(shown)
    return out.getvalue().splitlines()


def test_largest_topic_is_first_and_internal_ones_are_left_out() -> None:
    lines = printed(screen(Look(cluster().read(), None), ONE_DOLLAR))
    names = [line.split()[0] for line in lines[-2:]]
    assert names == ["large", "small"]
    assert "4.0 MiB" in lines[-2]
    assert "4.0 MiB remote, $0.00 a month" in lines[0]


def test_copies_in_progress_are_named_with_their_time() -> None:
    assert "copied" not in printed(screen(Look(cluster().read(), None), ONE_DOLLAR))[0]
    made, state = cluster(), RemoteLogSegmentState.COPY_SEGMENT_STARTED
    made.add("begun", [remote_segment(9, 0, 9, state=state)], local_tier(0, 0, 20, 1000))
    look = Look(made.read(), None)
    assert ", 1 segment is being copied, since " in printed(screen(look, ONE_DOLLAR))[0]


def test_bar_has_the_shares_of_the_tiers() -> None:
    topics = cluster().read().topics
    bar = tier_bar(topics["large"].sums, 24)
    assert [(span.style, span.end - span.start) for span in bar.spans if span.end > span.start] == [
        ("magenta", 12),
        ("blue", 12),
    ]
    assert len(tier_bar(topics["small"].sums, 24).plain) == len(bar.plain)


def test_screen_that_is_too_low_names_what_it_leaves_out() -> None:
    lines = printed(screen(Look(cluster().read(), None), ONE_DOLLAR, 1))
    assert "1 more, which are smaller" in lines[-1]
    assert not any(line.split()[0] == "small" for line in lines)


def test_cluster_that_is_gone_keeps_its_numbers_and_says_so() -> None:
    lines = printed(screen(Look(cluster().read(), "no broker is reachable"), ONE_DOLLAR))
    assert "does not answer" in lines[1]
    assert "no broker is reachable" in lines[1]
    assert lines[-2].split()[0] == "large"


def test_narrow_screen_keeps_whole_names_and_numbers() -> None:
    out = io.StringIO()
    Console(file=out, width=72).print(screen(Look(cluster().read(), None), ONE_DOLLAR, width=72))
    row = out.getvalue().splitlines()[-2]
    assert row.split()[0] == "large"
    assert "4.0 MiB" in row
    assert "…" not in out.getvalue()


def test_metrics_that_do_not_answer_are_named() -> None:
    """Without them, why copies fail is unknown: a wrong address once looked like a sound tier."""
    urls = [f"http://127.0.0.1:{port}/metrics" for port in range(1, 8)]
    with closing(WatchedMetrics(metrics_addresses(urls, None), SimClock(), 0)) as watched:
        shown = screen(Look(cluster().read(), None), ONE_DOLLAR, metrics=watched.look())
    lines = printed(shown)
    assert lines[1].startswith(f"no metrics from {urls[0]}: ")
    assert lines[6] == "no metrics from 2 more brokers"
    assert lines[-1].split()[0] == "small"
