"""A search for hostile requests finds none, and what it keeps is sent again, to another broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.hostile_search import LISTENERS, Search, Target, attacked_broker, has_failed
from tests.support.extreme_requests import FRAME_SIZE_MAX
from tests.support.hostile_crowd import Planner, read_plans

# In CPU time of the loop, not by the clock. The goal is 50 ms; a processor that is shared takes
# several times as long for the same work, and for a moment far longer. What a request costs recurs
# each time, so the least of a few attempts counts.
LOOP_MS_MAX = 500
ATTEMPTS = 3
SMALL_BOUNDS = {
    "socket.request.max.bytes": str(2 * FRAME_SIZE_MAX),
    "queued.max.request.bytes": str(16 * 2**20),
    "queued.max.unauthenticated.request.bytes": str(2**20),
    "queued.max.response.bytes": str(32 * 2**20),
    "message.decompressed.max.bytes": str(32 * 2**20),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One broker for all searches: a start takes as long as thousands of frames."""
    with attacked_broker(tmp_path_factory.mktemp("attacked") / "broker", SMALL_BOUNDS) as started:
        yield started


@pytest.mark.parametrize(
    ("frames", "connections"),
    [(50_000, 300), pytest.param(1_000_000, 300, marks=pytest.mark.nightly)],
)
def test_healthy_client_is_served_whatever_others_send(
    target: Target, tmp_path: Path, frames: int, connections: int
) -> None:
    search = Search(target, tmp_path / "kept", "kept")
    search.search(Planner(5, target.topic_id, LISTENERS), frames, connections)
    figures = search.end()
    assert not has_failed(figures), figures
    assert figures["frames"] >= frames
    assert figures["requests_answered"] > 0
    for name, longest_ms in loop_times_ms(figures).items():
        if longest_ms >= LOOP_MS_MAX:
            kept = tmp_path / "kept" / f"kept-{name}.json"
            attempts = (tmp_path / name / str(attempt) for attempt in range(ATTEMPTS))
            has_passed = any(sent_again(kept, folder)[name] < LOOP_MS_MAX for folder in attempts)
            assert has_passed, (name, longest_ms, figures)


def loop_times_ms(figures: Mapping[str, Any]) -> dict[str, float]:
    """By the name of the file that keeps the plans that were carried out at that moment."""
    return {
        "wait_loop": figures["longest_wait_loop_ms"],
        "login_loop": figures["longest_login_loop_ms"],
        "step": max((step["ms"] for step in figures["loop_steps_cpu_ms"]), default=0.0),
    }


def sent_again(kept: Path, folder: Path) -> dict[str, float]:
    """What the kept plans cost a broker of their own."""
    folder.mkdir(parents=True)
    with attacked_broker(folder / "broker", SMALL_BOUNDS) as target:
        search = Search(target, folder, "again")
        search.replay(read_plans(kept, target.topic_id))
        return loop_times_ms(search.end())


def test_kept_plans_are_sent_again(tmp_path: Path) -> None:
    # A broker of its own: only one whose memory has not grown yet grows by what is kept.
    with attacked_broker(tmp_path / "first") as target:
        search = Search(target, tmp_path, "found")
        search.search(Planner(6, target.topic_id, LISTENERS), 100, 20)
        search.end()
        old_id = target.topic_id
    kept = tmp_path / "found-memory.json"
    with attacked_broker(tmp_path / "second") as target:
        plans = read_plans(kept, target.topic_id)
        assert max(len(plan.payload) for plan in plans) < 5 * FRAME_SIZE_MAX
        assert any(target.topic_id.bytes in plan.payload for plan in plans)
        assert not any(old_id.bytes in plan.payload for plan in plans)
        search = Search(target, tmp_path, "again")
        search.replay(plans)
        assert search.end()["connections"] == len(plans)
