"""What a search for hostile requests keeps is sent again, to another broker."""

from __future__ import annotations

from pathlib import Path

from bench.hostile_search import LISTENERS, Search, attacked_broker
from tests.support.extreme_requests import FRAME_SIZE_MAX
from tests.support.hostile_crowd import Planner, read_plans


def test_kept_plans_are_sent_again(tmp_path: Path) -> None:
    with attacked_broker(tmp_path / "first") as target:
        search = Search(target, tmp_path, "found")
        search.search(Planner(2, target.topic_id, LISTENERS), 100, 20)
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
