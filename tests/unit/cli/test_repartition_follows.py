"""`repartition --follow`, whose exit code tells whether the lag has become small enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner, Result

from isotherm.cli import pipeline_repartition
from isotherm.cli.main import app
from isotherm.errors import PolicyViolationError
from isotherm.spark.jobs import repartition_runs
from isotherm.spark.jobs.offsets_map import CopiedTo
from isotherm.spark.jobs.repartition_runs import CopyReport
from isotherm.spark.tier import open_log

FOLLOWING = ("pipeline", "repartition", "old", "new", "-b", "127.0.0.1:1", "--path", "/bucket")


class Brokers:
    def own_topic_config(self, topic: str) -> dict[str, str]:
        return {"topic": topic}

    def create_topic(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        assert (topic, partitions, config) == ("new", 3, {"topic": "old"})


@pytest.mark.parametrize(("lag_ms", "code"), [(900, 1), (501, 1), (500, 0)])
def test_lag_of_the_last_run_decides(
    monkeypatch: pytest.MonkeyPatch, lag_ms: int, code: int
) -> None:
    limits: list[int | None] = []

    def runs(*arguments: object) -> Iterator[CopyReport]:
        limits.extend(limit for limit in arguments if isinstance(limit, int))
        report = CopyReport([], [], CopiedTo({0: 7}, {0: 7}))
        for lag in (70_000, lag_ms):
            yield report
            yield report._replace(is_adopted=True, lag_ms=lag)

    monkeypatch.setattr(open_log, "open_brokers", lambda _: Brokers())
    monkeypatch.setattr(pipeline_repartition, "spark_session", lambda _: nullcontext())
    monkeypatch.setattr(repartition_runs, "ranges_to_copy", lambda *_: [])
    monkeypatch.setattr(repartition_runs, "runs", runs)
    done = follow("--lag-ms", "500")
    assert limits == [500]
    assert done.exit_code == code, done.output
    if code:
        assert isinstance(done.exception, PolicyViolationError)
        assert f"lag_ms={lag_ms} limit_ms=500 runs=2" in str(done.exception)
    # What was copied is told in any case: the next run begins there.
    assert "--from-offsets" in done.stdout


def follow(*more: str) -> Result:
    return CliRunner().invoke(app, [*FOLLOWING, "--partitions", "3", "--follow", "--run", *more])
