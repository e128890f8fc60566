"""The bounds of a file in an Iceberg table never hide a row from a reader that filters by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow

from isotherm.spark.tables.iceberg_snapshots import FileChange, commit_snapshot
from isotherm.spark.tables.topic_table import overtaken

LONG = "z" * 5000
NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        (pa.string(), [["a", LONG], ["b"]]),
        (pa.string(), [["b"], [LONG, "a"]]),
        (pa.string(), [[LONG], [LONG]]),
        (pa.string(), [["a", "b"], ["c"]]),
        (pa.string(), [[None], ["c"]]),
        (pa.binary(), [[b"a", b"\xff" * 5000], [b"b"]]),
        (pa.float64(), [[NAN], [1.0]]),
        (pa.float64(), [[-0.0], [0.0]]),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_each_row_is_found_by_its_value(
    tmp_path: Path, kind: pa.DataType, groups: list[list[Any]], inside: bool
) -> None:
    catalog = load_catalog(
        "own", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path)
    )
    catalog.create_namespace("n")
    column = pa.struct([("x", kind)]) if inside else kind
    table = catalog.create_table("n.t", pa.schema([("n", pa.int64()), ("v", column)]))
    schema = schema_to_pyarrow(table.schema())
    file = tmp_path / "rows.parquet"
    with parquet.ParquetWriter(file, schema) as writer:
        for number, values in enumerate(groups):
            rows = [{"x": each} for each in values] if inside else values
            numbers = [number * 10 + n for n in range(len(rows))]
            writer.write_table(pa.table([numbers, rows], schema=schema))
    commit_snapshot(table, FileChange([str(file)]), dict, overtaken("n.t"))
    name = "v.x" if inside else "v"
    for number, values in enumerate(groups):
        for place, value in enumerate(values):
            if value is not None and value is not NAN:
                scan = table.scan(EqualTo(name, value))
                assert number * 10 + place in scan.to_arrow().column("n").to_pylist()
    (planned,) = table.scan().plan_files()
    # Columns with bounds of each group keep them: by these readers skip files. PyIceberg makes none
    # inside structs.
    bounds = planned.file.lower_bounds or {}
    assert table.schema().find_field("n").field_id in bounds
    has_all = all(each in ("a", "b", "c", None, 0.0) for values in groups for each in values)
    assert (table.schema().find_field(name).field_id in bounds) == (has_all and not inside)
