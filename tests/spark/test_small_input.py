"""Jobs whose input is small start few Spark jobs and tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli import pipeline_metadata
from isotherm.cli.main import app
from isotherm.spark import small_input
from isotherm.spark.small_input import local_frame, map_batches, map_groups, small_session
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.spark.test_metadata_pipeline import _fill

ROWS = pa.schema([pa.field("key", pa.string()), pa.field("number", pa.int64())])
# The most Spark jobs and tasks of each job on the broker's 50 metadata partitions.
MOST = {"sweep": (15, 24), "audit": (14, 24)}


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        _fill(broker)
        yield broker


@contextmanager
def counted(spark: SparkSession, group: str) -> Iterator[list[int]]:
    """The numbers of Spark jobs and of started tasks within the block, once it has ended."""
    counts: list[int] = []
    context = spark.sparkContext
    context.setLocalProperty("spark.jobGroup.id", group)
    try:
        yield counts
        tracker = context.statusTracker()
        jobs = tracker.getJobIdsForGroup(group)
        found = [tracker.getJobInfo(each) for each in jobs]
        stages = {stage for job in found if job is not None for stage in job.stageIds}
        infos = [tracker.getStageInfo(stage) for stage in stages]
        counts += [len(jobs), sum(each.numTasks for each in infos if each is not None)]
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def run(job: str, broker: EmbeddedBroker) -> None:
    place = [] if job == "audit" else ["--path", str(broker.directory / "bucket")]
    command = ["pipeline", job, *place, "-b", broker.bootstrap_servers, "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code in (0, 3), result.output


def test_jobs_on_a_small_topic_start_few_tasks(
    spark: SparkSession,
    tiered: EmbeddedBroker,
    await_manifests: Callable[[EmbeddedBroker, str, int], None],
) -> None:
    await_manifests(tiered, "flights", 3)
    bucket = tiered.directory / "bucket"
    (manifest, *_) = sorted(bucket.rglob("*.rsm-manifest"))
    Path(f"{manifest}.stray").write_bytes(b"?")
    for job, most in MOST.items():
        with counted(spark, job) as counts:
            run(job, tiered)
        jobs, tasks = counts
        assert 0 < jobs <= most[0], job
        assert 0 < tasks <= most[1], job


def test_batches_in_several_chunks_keep_all_their_rows(spark: SparkSession) -> None:
    batches = [
        pa.RecordBatch.from_pylist([{"key": "k", "number": number}] * (number % 3), ROWS)
        for number in range(20)
    ]
    frame = local_frame(small_session(spark), iter(batches), ROWS)
    expected = [row for batch in batches for row in batch.to_pylist()]
    assert frame.toArrow().to_pylist() == expected


@pytest.mark.parametrize("is_small", [True, False])
def test_functions_see_all_batches_and_whole_groups(spark: SparkSession, *, is_small: bool) -> None:
    session = small_session(spark) if is_small else spark
    rows = [{"key": key, "number": number} for number, key in enumerate("abcabca")]
    batches = [
        pa.RecordBatch.from_pylist(rows[:3], ROWS),
        pa.RecordBatch.from_pylist(rows[3:], ROWS),
    ]
    frame = local_frame(session, batches, ROWS)

    def tenfold(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            made = [{**row, "number": row["number"] * 10} for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(made, ROWS)

    def summed(group: pa.Table) -> pa.Table:
        numbers = group["number"].to_pylist()
        return pa.Table.from_pylist([{"key": group["key"][0], "number": sum(numbers)}], ROWS)

    mapped = map_batches(frame, tenfold, ROWS)
    assert sorted(mapped.toArrow()["number"].to_pylist()) == [10 * n for n in range(7)]
    sums = map_groups(mapped, ("key",), summed, ROWS).toArrow().to_pylist()
    assert sorted((row["key"], row["number"]) for row in sums) == [("a", 90), ("b", 50), ("c", 70)]


def test_large_metadata_is_not_small(monkeypatch: pytest.MonkeyPatch) -> None:
    from isotherm.spark.jobs import replay
    from isotherm.spark.jobs.cost import Cost

    size = small_input.SMALL_INPUT_BYTES_MAX
    for more, expected in ((0, True), (1, False)):
        cost = Cost(bytes_read=size + more)
        monkeypatch.setattr(replay, "cost_of_log", lambda _, cost=cost: cost)
        assert pipeline_metadata.is_small_metadata(object()) is expected  # type: ignore[arg-type]
