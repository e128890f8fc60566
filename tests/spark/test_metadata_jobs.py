"""Jobs over the metadata topic, against the fold that brokers use and against planted faults."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from isotherm.errors import ConfigError, CorruptObjectError, UnknownTopicOrPartitionError
from isotherm.remote.metadata.folding.fold import fold_metadata_partition
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.project import LOST, check_table_format, project, projected_segments
from isotherm.spark.jobs.replay import AsOf, replay
from isotherm.spark.jobs.verify import DIFFERENT, EXTRA, MISSING, verify
from isotherm.spark.metadata.remote_metadata_log import (
    DumpMetadataLog,
    LogIdentity,
    LogSlice,
    RecordRun,
)
from isotherm.spark.metadata.segment_frames import segment_row
from isotherm.spark.metadata.slice_fold import (
    DAMAGED_BATCH,
    DAMAGED_RECORD,
    HEAD_MISSING,
    MISPLACED,
    NO_METADATA,
    RECORDS_MISSING,
)
from isotherm.testing.conformance.remote_metadata import FINISHED, make_segment, make_update
from isotherm.types import TopicIdPartition, uuid_to_text
from tests.support.memory_metadata_topic import MemoryMetadataTopic
from tests.support.metadata_dump import DumpedRecord, write_dump
from tests.support.metadata_histories import histories

PARTITIONS = 8
NOT_OF_THE_CACHE = ("metadata_partition", "has_key", "source_offset")


def settings_of(folder: Path) -> ObjectStoreSettings:
    return ObjectStoreSettings(url=folder.as_uri())


def dump_of(folder: Path) -> DumpMetadataLog:
    return DumpMetadataLog((settings_of(folder),))


def rows_of(frame: DataFrame) -> list[str]:
    rows = (row.asDict(recursive=True) for row in frame.collect())
    return sorted(
        str({name: _plain(value) for name, value in row.items() if name not in NOT_OF_THE_CACHE})
        for row in rows
    )


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


class Model:
    """The expected content of a broker's caches after the first `counts` records of each
    partition.
    """

    def __init__(self, partitions: list[list[DumpedRecord]], counts: list[int]) -> None:
        self.rows: list[str] = []
        self.damaged: list[tuple[int, int]] = []
        for number, (records, count) in enumerate(zip(partitions, counts, strict=True)):
            topic = MemoryMetadataTopic(1)
            for key, value in records[:count]:
                topic.append(0, key, value, 0)

            def on_corrupt(error: Exception, number: int = number) -> None:
                offset = int(str(error).partition(" offset=")[2].partition(" ")[0])
                self.damaged.append((number, offset))

            folded = fold_metadata_partition(topic, 0, lambda _: True, on_corrupt)
            for cache, _ in folded.partitions:
                self.rows += [str(segment_row(segment)) for segment in cache.segments()]
        self.rows.sort()


@given(st.lists(histories, min_size=PARTITIONS, max_size=PARTITIONS), st.randoms())
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
def test_jobs_tell_what_the_brokers_cache_knows(
    spark: SparkSession, partitions: list[list[DumpedRecord]], rng: Any
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder, target = Path(scratch, "dump"), settings_of(Path(scratch, "projection"))
        cuts = [rng.randint(0, len(records)) for records in partitions]
        for number, (records, cut) in enumerate(zip(partitions, cuts, strict=True)):
            write_dump(folder, number, records[:cut])
        project(spark, dump_of(folder), target)
        assert rows_of(projected_segments(spark, target)) == Model(partitions, cuts).rows

        for number, (records, cut) in enumerate(zip(partitions, cuts, strict=True)):
            rest = records[cut:]
            write_dump(folder, number, rest, first_offset=cut, first_timestamp_ms=cut)
        model = Model(partitions, [len(records) for records in partitions])
        done = project(spark, dump_of(folder), target)
        assert done.records == sum(map(len, partitions)) - sum(cuts)
        assert rows_of(projected_segments(spark, target)) == model.rows

        for spread in (False, True):
            with replay(spark, dump_of(folder), spread=spread) as found:
                assert rows_of(found.segments) == model.rows
                damaged = found.findings.where(f"kind = '{DAMAGED_RECORD}'").collect()
                named = sorted((row.metadata_partition, row.offset) for row in damaged)
                assert named == sorted(model.damaged)
                assert found.records() == sum(map(len, partitions))
        with replay(spark, dump_of(folder), as_of=AsOf(dict(enumerate(cuts)))) as then:
            assert rows_of(then.segments) == Model(partitions, cuts).rows
        with replay(spark, dump_of(folder), as_of=AsOf(timestamp_ms=7), spread=True) as then:
            at_7 = [min(8, len(records)) for records in partitions]
            assert rows_of(then.segments) == Model(partitions, at_7).rows


OWNER = TopicIdPartition(uuid.UUID(int=7), "flights", 0)


def events(count: int) -> list[DumpedRecord]:
    """Segments of ten offsets, each started and finished."""
    made: list[DumpedRecord] = []
    for number in range(count):
        segment = make_segment(number, {0: 10 * number}, 10 * number + 9, partition=OWNER)
        made.append((None, encode_event(segment)))
        made.append((None, encode_event(make_update(segment, FINISHED))))
    return made


def test_what_is_wrong_with_a_topic_is_named(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    good = events(3)
    write_dump(folder, 0, good)
    write_dump(folder, 1, good, first_offset=40)
    damaged = write_dump(folder, 2, good)
    content = bytearray(damaged.read_bytes())
    # The last byte of the second batch's record: only this batch is lost.
    first_size = int.from_bytes(content[8:12], "big") + 12
    second_size = int.from_bytes(content[first_size + 8 : first_size + 12], "big") + 12
    content[first_size + second_size - 1] ^= 0xFF
    damaged.write_bytes(content)
    write_dump(folder, 3, [good[0], (None, b"not an event"), *good[1:]])
    write_dump(folder, 4, good[:2])
    write_dump(folder, 4, good[4:], first_offset=4)
    write_dump(folder, 5, [(b"key", b"a record of another topic"), (None, b"another")])
    for spread in (False, True):
        with replay(spark, dump_of(folder), spread=spread) as found:
            reported = {
                (row.metadata_partition, row.kind, row.offset) for row in found.findings.collect()
            }
        plain = {each for each in reported if each[1] not in (MISPLACED, NO_METADATA)}
        assert plain == {
            (1, HEAD_MISSING, 40),
            (2, DAMAGED_BATCH, 1),
            (2, RECORDS_MISSING, 1),
            (3, DAMAGED_RECORD, 1),
            (4, RECORDS_MISSING, 2),
            (5, DAMAGED_RECORD, 0),
            (5, DAMAGED_RECORD, 1),
        }
        assert {(5, NO_METADATA)} == {each[:2] for each in reported if each[1] == NO_METADATA}
        misplaced = {each[0] for each in reported if each[1] == MISPLACED}
        assert len(misplaced) == 4, "user partition 0 has one place among six"
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no file of the topic.*__remote"):
        replay(spark, DumpMetadataLog((settings_of(folder),), "__remote_log_metadata_audit"))


def test_projection_refuses_what_it_is_not_of(spark: SparkSession, tmp_path: Path) -> None:
    folder, target = tmp_path / "dump", settings_of(tmp_path / "projection")
    write_dump(folder, 0, events(3))
    write_dump(folder, 1, events(2))
    (folder / "meta.properties").write_text("version=1\ncluster.id=first\n")
    project(spark, dump_of(folder), target)

    (folder / "meta.properties").write_text("version=1\ncluster.id=second\n")
    with pytest.raises(ConfigError, match=r"of another topic.*@first.*@second"):
        project(spark, dump_of(folder), target)
    with pytest.raises(ConfigError, match="in use and holds no projection"):
        project(spark, dump_of(folder), settings_of(folder))
    (folder / "meta.properties").unlink()

    kept = rows_of(projected_segments(spark, target))
    (folder / "__remote_log_metadata-0" / f"{0:020d}.log").unlink()
    write_dump(folder, 0, events(1), first_offset=50)
    done = project(spark, dump_of(folder), target)
    assert [finding.metadata_partition for finding in done.findings if finding.kind == LOST] == [0]
    assert rows_of(projected_segments(spark, target)) == kept
    with pytest.raises(ConfigError, match=r"delta has no package for this Spark"):
        check_table_format(spark, "delta")
    with pytest.raises(ConfigError, match="no such table format"):
        check_table_format(spark, "hudi")
    newest = max((tmp_path / "projection" / "segments" / "1").iterdir())
    newest.write_bytes(newest.read_bytes()[:-40])
    with pytest.raises(CorruptObjectError, match="projection cannot be read"):
        list(read_all(target))


def read_all(target: ObjectStoreSettings) -> Iterator[Any]:
    from isotherm.spark.metadata.projection import read_segments

    yield from read_segments(target)


def test_projection_that_was_cut_off_is_finished_by_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    class LogThatBreaks:
        """Makes the job fail when it reads the last metadata partition."""

        topic = "__remote_log_metadata"

        def __init__(self, log: DumpMetadataLog) -> None:
            self._log = log

        def identity(self) -> LogIdentity:
            return self._log.identity()

        def slices(self) -> list[LogSlice]:
            return self._log.slices()

        def read(self, wanted: LogSlice, on_damage: Any) -> Iterator[RecordRun]:
            if wanted.number == 3:
                raise OSError("the machine went away")
            return self._log.read(wanted, on_damage)

    folder, target = tmp_path / "dump", settings_of(tmp_path / "projection")
    for number in range(4):
        write_dump(folder, number, events(number + 1))
    with pytest.raises(Exception, match="the machine went away"):
        project(spark, LogThatBreaks(dump_of(folder)), target)
    before = len(list((tmp_path / "projection").rglob("*.parquet")))
    assert before < 4
    done = project(spark, dump_of(folder), target)
    assert done.records >= 8
    assert projected_segments(spark, target).count() == 1 + 2 + 3 + 4
    # The leftover of a run that was killed between writing a file and deleting the previous one.
    stale = tmp_path / "projection" / "segments" / "0" / f"{1:020d}.parquet"
    stale.write_bytes(b"an older state")
    assert projected_segments(spark, target).count() == 1 + 2 + 3 + 4
    project(spark, dump_of(folder), target)
    assert not stale.exists()


def test_every_difference_is_named(spark: SparkSession, tmp_path: Path) -> None:
    good, other = events(4), events(4)
    shorter = make_segment(1, {0: 10}, 18, partition=OWNER)
    other[2] = (None, encode_event(shorter))
    del other[7], other[0:2]
    write_dump(tmp_path / "history", 0, good)
    write_dump(tmp_path / "other", 0, [*other, *events(5)[8:]])
    with (
        replay(spark, dump_of(tmp_path / "history")) as history,
        replay(spark, dump_of(tmp_path / "other")) as found,
    ):
        assert verify(history.segments, history.segments).count() == 0
        reported = verify(history.segments, found.segments).collect()
    names = {uuid_to_text(uuid.UUID(int=number)): number for number in range(9)}
    assert {(names[row.segment_id], row.kind, row.field) for row in reported} == {
        (0, MISSING, "segment"),
        (1, DIFFERENT, "end_offset"),
        (3, DIFFERENT, "state"),
        (3, DIFFERENT, "event_timestamp_ms"),
        (4, EXTRA, "segment"),
    }
    (state,) = [row for row in reported if row.field == "state"]
    assert (state.expected, state.found) == ("COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED")
