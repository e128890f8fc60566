"""Jobs whose input is small start few Spark jobs and tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli import pipeline_metadata
from isotherm.cli.main import app
from isotherm.cli.pipeline_metadata import store_settings
from isotherm.cli.pipeline_options import SparkOptions
from isotherm.spark import small_input
from isotherm.spark.jobs.project import projected_segments
from isotherm.spark.metadata.remote_metadata_log import MetadataLog
from isotherm.spark.small_input import local_frame, map_batches, map_groups, small_session
from isotherm.spark.table_frame import table_frame
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.spark.test_metadata_pipeline import _fill
from tests.spark.test_planted_damage import age
from tests.support.planted_bucket import PlantedBucket
from tests.support.planted_damage import plant_all

ROWS = pa.schema([pa.field("key", pa.string()), pa.field("number", pa.int64())])
# The most Spark jobs and tasks of each job on the broker's 50 metadata partitions.
MOST = {"sweep": (15, 24), "audit": (14, 24), "scrub": (12, 16), "rebuild": (14, 16)}
AS_LARGE = ["--spark-config", "spark.isotherm.smallInput=false"]
METADATA_PARTITIONS = 50
_SETTINGS = {
    "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
}
WITH_BUCKET = ("sweep", "scrub", "rebuild")


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), _SETTINGS) as broker:
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
        found = [tracker.getJobInfo(job) for job in jobs]
        stages = {stage for job in found if job is not None for stage in job.stageIds}
        infos = [tracker.getStageInfo(stage) for stage in stages]
        counts += [len(jobs), sum(info.numTasks for info in infos if info is not None)]
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def run(job: str, broker: EmbeddedBroker, *more: str) -> None:
    place = ["--path", str(broker.directory / "bucket")] if job in WITH_BUCKET else []
    cluster = [] if job == "rebuild" else ["-b", broker.bootstrap_servers]
    command = ["pipeline", job, *place, *cluster, "--json", *more]
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
    with counted(spark, "large") as counts:
        run("replay", tiered, *AS_LARGE)
    # The first query folds each partition of the topic in a task of its own.
    assert counts[1] >= METADATA_PARTITIONS


def test_table_of_a_small_topic_has_the_same_rows_from_one_task(
    spark: SparkSession,
    tiered: EmbeddedBroker,
    await_manifests: Callable[[EmbeddedBroker, str, int], None],
    tmp_path: Path,
) -> None:
    await_manifests(tiered, "flights", 3)
    place = ["--path", str(tiered.directory / "bucket"), "-b", tiered.bootstrap_servers]
    rows, counts = {}, {}
    for name, more in (("small", []), ("large", ["-o", "targetBytesPerTask=16384", *AS_LARGE])):
        to = ["--to", "parquet", "--warehouse", str(tmp_path / name)]
        with counted(spark, f"table {name}") as counts[name]:
            command = ["pipeline", "table", "flights", *place, *to, *more]
            result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        files = sorted((tmp_path / name).rglob("*.parquet"))
        table = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
        rows[name] = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert rows["small"].num_rows > 1000
    assert rows["small"].equals(rows["large"])
    assert counts["small"] <= [1, 1]
    assert counts["large"][1] > 1


# Each job, with the place of what it reads: the bucket, its metadata, or both.
_BUCKET, _DUMP = ("--path", "{bucket}", "-o", "key.prefix=tiered/"), ("--dump", "{dump}")
COMPARED = {
    "replay": _DUMP,
    "audit": (*_DUMP, "--now", "2030-01-01"),
    "sweep": (*_BUCKET, *_DUMP, "--everywhere"),
    "scrub": (*_BUCKET, *_DUMP),
    "scrub of manifests": _BUCKET,
    "rebuild": _BUCKET,
    "verify": (*_DUMP, "--against-dump", "{sound_dump}"),
    "project": (*_DUMP, "--to", "{target}"),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> PlantedBucket:
    bucket = PlantedBucket(tmp_path_factory.mktemp("planted"))
    bucket.add_sound_topics()
    plant_all(bucket)
    bucket.write_dumps()
    age(bucket)
    return bucket


@pytest.mark.parametrize("job", COMPARED)
def test_plans_for_small_and_large_inputs_have_the_same_rows(
    spark: SparkSession,
    planted: PlantedBucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
) -> None:
    sessions: list[SparkSession] = []

    def small(*arguments: Any) -> SparkSession:
        sessions.append(small_session(*arguments))
        return sessions[-1]

    monkeypatch.setattr(small_input, "small_session", small)

    def rows(path: str, *more: str) -> tuple[int, list[str]]:
        place = {"bucket": planted.folder, "dump": planted.dump, "target": tmp_path / path}
        texts = [each.format(**place, sound_dump=planted.sound_dump) for each in COMPARED[job]]
        command = ["pipeline", job.partition(" ")[0], *texts, "--json", *more]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        # The cost has the number of tasks, which differs.
        lines = [line for line in result.stdout.splitlines() if not line.startswith('{"cost"')]
        if job == "project":
            target = store_settings(str(tmp_path / path), None)
            lines += [str(row) for row in projected_segments(spark, target).collect()]
        return result.exit_code, sorted(lines)

    with counted(spark, f"{job} small") as tasks_of_small:
        found = rows("small")
    assert len(sessions) == 1
    with counted(spark, f"{job} large") as tasks_of_large:
        expected = rows("large", *AS_LARGE)
    assert len(sessions) == 1
    assert found == expected
    assert len(found[1]) > 1
    assert tasks_of_small[1] <= tasks_of_large[1]


def test_tables_with_empty_chunks_keep_all_their_rows(spark: SparkSession) -> None:
    batches = [
        pa.RecordBatch.from_pylist([{"key": "k", "number": number}] * (number % 3), ROWS)
        for number in range(20)
    ]
    frame = local_frame(small_session(spark), iter(batches), ROWS)
    expected = [row for batch in batches for row in batch.to_pylist()]
    assert frame.toArrow().to_pylist() == expected
    table = pa.Table.from_batches(batches)
    assert table_frame(spark, table).toArrow().to_pylist() == expected


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
        log: MetadataLog = object()  # type: ignore[assignment]
        assert pipeline_metadata.is_small_metadata(SparkOptions(), log) is expected
        as_large = SparkOptions(spark_config=AS_LARGE[1:])
        assert not pipeline_metadata.is_small_metadata(as_large, log)
