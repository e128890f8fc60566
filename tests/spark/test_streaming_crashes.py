"""A stream dies at every point where it can die, and each record still comes exactly once.

The source's process is killed, not asked: SIGKILL at the named point, of the process that plans or
of the worker that reads. The sink dies by raising, which leaves behind what a kill of the driver
leaves: an offset log without its commit.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from isotherm.spark.source import IsothermDataSource
from isotherm.spark.streaming.stream_source import IsothermStreamReader
from isotherm.types import TopicIdPartition

PER_RUN = 30
# In the order in which Spark reaches them, with the number of the call. Nothing is in the
# checkpoint before the second initialOffset; the first batch of a stream from the end is empty.
FIRST_BATCH = (
    "initialOffset-1",
    "latestOffset-1",
    "reportLatestOffset-1",
    "initialOffset-2",
    "partitions-1",
    "planned-1",
    "sink",
    "sink-done",
)
# Spark calls `commit` for a batch while it makes the next one.
LATER_BATCHES = (
    "latestOffset-1",
    "partitions-1",
    "planned-1",
    "read",
    "read-late",
    "sink",
    "sink-done",
    "latestOffset-2",
    "commit-1",
    "partitions-2",
)


def die_at(folder: str, point: str) -> None:
    flag = Path(folder) / point
    if flag.exists():
        flag.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class MortalReader(IsothermStreamReader):
    """A reader that kills its process at each point that has a flag in the folder."""

    def __init__(self, flags: str, options, schema) -> None:
        super().__init__(options, schema)
        self._flags = flags
        self._calls: dict[str, int] = {}

    def _reach(self, point: str) -> None:
        self._calls[point] = self._calls.get(point, 0) + 1
        die_at(self._flags, f"{point}-{self._calls[point]}")

    def initialOffset(self):
        self._reach("initialOffset")
        return super().initialOffset()

    def latestOffset(self, start, limit):
        self._reach("latestOffset")
        return super().latestOffset(start, limit)

    def reportLatestOffset(self):
        self._reach("reportLatestOffset")
        return super().reportLatestOffset()

    def partitions(self, start, end):
        self._reach("partitions")
        planned = super().partitions(start, end)
        self._reach("planned")
        return planned

    def commit(self, end) -> None:
        self._reach("commit")

    def read(self, partition) -> Iterator:
        die_at(self._flags, "read")
        yield from super().read(partition)
        die_at(self._flags, "read-late")


class MortalSource(IsothermDataSource):
    flags = ""

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamReader(self, schema):
        return MortalReader(self.flags, super().streamReader(schema)._options, schema)


@pytest.fixture
def flags(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the flags. Registers `format("mortal")`."""
    folder = tmp_path / "flags"
    folder.mkdir()
    monkeypatch.setattr(MortalSource, "flags", str(folder))
    # Workers cannot import a test module, so it is pickled by value.
    register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(MortalSource)
    yield folder
    unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize(
    "points",
    [
        pytest.param((*FIRST_BATCH, *LATER_BATCHES), id="all", marks=pytest.mark.nightly),
        pytest.param(("initialOffset-2", "planned-1", "read-late", "sink-done"), id="some"),
    ],
)
def test_every_record_comes_once_wherever_the_stream_dies(
    spark: SparkSession, tier, flags: Path, tmp_path: Path, points: tuple[str, ...]
) -> None:
    """One stream from the end of its topic, with a run for each point.

    Records are added between the runs, so that a second look-up of the starting offset would show.
    """
    owner = TopicIdPartition(uuid.UUID(int=8), "events", 0)
    written: dict[int, list[list[int]]] = {}
    end = 0

    def add_records(count: int) -> None:
        nonlocal end
        tier.add(owner, range(end, end + count))
        end += count

    def write(frame, batch: int) -> None:
        fail_at("sink")
        rows = sorted(row.offset for row in frame.collect())
        written.setdefault(batch, []).append(rows)
        fail_at("sink-done")

    def fail_at(point: str) -> None:
        if (flags / point).exists():
            (flags / point).unlink()
            raise RuntimeError(point)

    def run() -> None:
        stream = spark.readStream.format("mortal").option("path", tier.folder.as_uri())
        options = {"subscribe": "events", "columns": "offset", "maxOffsetsPerTrigger": "50"}
        writer = stream.options(**options).load().writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    add_records(100)
    for point in points:
        (flags / point).touch()
        with pytest.raises(PySparkException):
            run()
        assert not (flags / point).exists(), f"the stream never came to {point}"
        add_records(PER_RUN)
    run()
    assert all(attempt == attempts[0] for attempts in written.values() for attempt in attempts)
    assert any(len(attempts) == 2 and attempts[0] for attempts in written.values())
    # Until a start is in the checkpoint, each run begins at the end of that moment.
    first = 100 + PER_RUN * points.index("initialOffset-2")
    once = [offset for batch in sorted(written) for offset in written[batch][0]]
    assert once == list(range(first, end))
