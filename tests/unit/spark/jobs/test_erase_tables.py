"""The rows that an erasure deletes from tables, and the offsets by which it finds them later."""

from __future__ import annotations

import io
import random
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import ConfigError, CorruptMetadataError, PolicyViolationError
from isotherm.remote.erasure.certificate import ErasedTable
from isotherm.spark.jobs import erase_tables
from isotherm.spark.jobs.erase_tables import (
    ErasedOffsets,
    _Kept,
    joined_offsets,
    offsets_table,
    read_offsets,
    with_left,
)
from isotherm.types import TopicIdPartition

ERASED: ErasedOffsets = {
    TopicIdPartition(uuid.UUID(int=1), "a", 0): np.array([3, 5, 9], np.int64),
    TopicIdPartition(uuid.UUID(int=1), "a", 7): np.array([0], np.int64),
    TopicIdPartition(uuid.UUID(int=2), "b", 0): np.array([4], np.int64),
}


def test_rows_of_erased_records_are_those_of_a_set() -> None:
    seeded = random.Random(1)
    places = [(seeded.randrange(4), seeded.randrange(30)) for _ in range(2000)]
    gone = {(seeded.randrange(3), seeded.randrange(28)) for _ in range(40)}
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([partition for partition, _ in places], pa.int32()),
            "offset": pa.array([offset for _, offset in places], pa.int64()),
        }
    )
    erased = {
        partition: np.array(sorted(at for of, at in gone if of == partition), np.int64)
        for partition, _ in gone
    }
    assert _Kept(erased)(batch).tolist() == [place not in gone for place in places]


def test_offsets_are_read_as_they_were_stored() -> None:
    file = io.BytesIO()
    parquet.write_table(offsets_table(ERASED), file)
    seen = read_offsets(file.getvalue())
    assert {owner: offsets.tolist() for owner, offsets in seen.items()} == {
        owner: offsets.tolist() for owner, offsets in ERASED.items()
    }
    assert read_offsets(_file(offsets_table({}))) == {}
    with pytest.raises(CorruptMetadataError):
        read_offsets(b"PAR1")


def test_offsets_of_a_tail_pass_are_added_to_the_stored_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, _, other = ERASED
    new = TopicIdPartition(uuid.UUID(int=2), "b", 1)
    later: ErasedOffsets = {
        first: np.array([9, 12], np.int64), new: np.array([8], np.int64),
    }  # fmt: skip
    joined = joined_offsets(ERASED, later)
    assert joined[first].tolist() == [3, 5, 9, 12]
    assert joined[other].tolist() == [4]
    assert joined[new].tolist() == [8]
    assert len(joined) == 4
    assert len(ERASED[first]) == 3
    monkeypatch.setattr(erase_tables, "TABLE_RECORDS_MAX", 7)
    with pytest.raises(PolicyViolationError, match="too many records are selected"):
        joined_offsets(ERASED, later)


def _file(table: pa.Table) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def test_other_tables_than_those_of_the_run_are_refused() -> None:
    run = [ErasedTable(name="a", table_format="delta", deleted=4)]
    counted = [ErasedTable(name="a", table_format="delta", left=2)]
    assert with_left(run, counted) == (
        ErasedTable(name="a", table_format="delta", deleted=4, left=2),
    )
    with pytest.raises(ConfigError, match="tables=a hint='give --table"):
        with_left(run, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "copy"], "a copy leaves the source as it is"),
        (["--action", "redact", "--field", "name"], "rows of tables are deleted"),
    ],
)
def test_tables_of_copies_and_redactions_are_refused(
    tmp_path: Path, options: list[str], message: str
) -> None:
    arguments = ["pipeline", "erase", "--path", str(tmp_path), "--where", "true", "--table", "t"]
    done = CliRunner().invoke(app, [*arguments, "-o", "subscribe=t", *options])
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
