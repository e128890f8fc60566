"""`isotherm pipeline table --follow`: one process, many runs, each record once.

Faults are injected between the runs; the topic's records are the oracle.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isotherm.errors import BrokerUnreachableError, ConfigError, TableOvertakenError
from isotherm.remote.tasks.backoff import RetryBackoff
from isotherm.spark.driver.topic_plan import TopicPlanner
from isotherm.spark.jobs import table_follow
from isotherm.spark.jobs.table_runs import TableRuns
from tests.spark.conftest import Tier
from tests.spark.test_table import OTHER, OWNER, check_is_topic, documents, put
from tests.support.topic_tables import follow_table, load_table, rows_of, run_table

needs_spark = pytest.mark.usefixtures("spark")


def between(patched: pytest.MonkeyPatch, *steps: Callable[[], None]) -> None:
    """Run a step after each committed run, and send SIGTERM after the last step."""
    left, add = list(steps), TableRuns.add

    def noted(self: TableRuns, *given: Any) -> Any:
        done = add(self, *given)
        left.pop(0)()
        if not left:
            os.kill(os.getpid(), signal.SIGTERM)
        return done

    patched.setattr(TableRuns, "add", noted)


@needs_spark
@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_history_and_what_comes_are_added_commit_after_commit(
    tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake = tmp_path / "lake"
    put(tier, OWNER, documents(range(30)))

    def more() -> None:
        put(tier, OTHER, [*documents(range(7), usd=1), b"{"])

    def broken() -> None:
        """No broker answers two attempts."""
        away, plan = [1, 2], TopicPlanner.plan

        def planned(self: TopicPlanner, *given: Any) -> Any:
            if away:
                away.pop()
                raise BrokerUnreachableError("no broker answers")
            return plan(self, *given)

        monkeypatch.setattr(TopicPlanner, "plan", planned)
        put(tier, OWNER, documents(range(3)))

    monkeypatch.setattr(table_follow, "RETRY_BACKOFF", RetryBackoff(1, 1, 0))
    between(monkeypatch, more, broken, lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    options = ("--value", "json", "--to", kind, "--warehouse", str(lake))
    upkeep = ("--compact", "--upkeep-every", "2") if kind == "iceberg" else ()
    lines = follow_table("prices", tier.folder, *options, *upkeep)
    runs = [line for line in lines if "rows" in line]
    assert signal.getsignal(signal.SIGTERM) == before
    assert [(run["rows"], run["dead_letters"]) for run in runs] == [(30, 0), (7, 1), (3, 0)]
    monkeypatch.undo()
    done = run_table("prices", tier.folder, *options)
    assert done["offsets"] == 0
    if kind == "iceberg":
        table, dead = (load_table(lake, f"kafka.prices{end}") for end in ("", "_dead_letters"))
        check_is_topic(tier, rows_of(table), rows_of(dead))
        # Two runs, the files of both merged, and one more run.
        merged = {
            "deleted_rows": 0,
            "merged_files": 2,
            "new_files": 1,
            "expired_snapshots": 0,
            "deleted_files": 0,
        }
        assert [line["upkeep"] for line in lines if "upkeep" in line] == [merged]
        assert len(table.history()) == 4
        keep = ("--compact", "--expire-snapshots", "0s")
        done = run_table("prices", tier.folder, *options, *keep)["upkeep"]
        assert (done["merged_files"], done["new_files"]) == (2, 1)
        table = load_table(lake, "kafka.prices")
        assert len(table.snapshots()) == 2, "the last run's, and that of the merge"
        check_is_topic(tier, rows_of(table), rows_of(dead))


@needs_spark
def test_another_run_ends_it(tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--warehouse", str(tmp_path / "lake"))
    put(tier, OWNER, documents(range(5)))
    look = TableRuns.look

    def overtaken(self: TableRuns) -> Any:
        run = look(self)
        monkeypatch.undo()
        run_table("prices", tier.folder, *options)
        return run

    def more() -> None:
        put(tier, OWNER, documents(range(5)))
        monkeypatch.setattr(TableRuns, "look", overtaken)

    between(monkeypatch, more, lambda: None)
    with pytest.raises(TableOvertakenError, match="another run has written to the table"):
        follow_table("prices", tier.folder, *options)
    rows = rows_of(load_table(tmp_path / "lake", "kafka.prices"))
    assert [row["offset"] for row in rows] == list(range(10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--until", "now"), r"option=--until value=now known=latest,tiered"),
        (("--until", "tiered", "-o", "IncludeTail=false"), r"exclude each other"),
        (("--dry-run", "--follow"), r"a dry run does not follow"),
        (("--expire-snapshots", "7"), r"not a duration option=--expire-snapshots value=7"),
        (("--compact", "--to", "parquet"), r"only Iceberg tables option=--compact to=parquet"),
    ],
)
def test_wrong_options_are_named(
    tier: Tier, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_table("prices", tier.folder, "--warehouse", str(tmp_path), *options)
