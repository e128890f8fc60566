"""Partitions of a table by the time of its records: the one a row is in, and the folder of its files. Pure.

The column is named, and its values are written, as Iceberg's transforms `hour` and `day` do it:
`timestamp_day=2026-11-25`, `timestamp_hour=2026-11-25-13`, in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from isotherm.errors import ConfigError

NO_PARTITIONS = "none"
HOUR, DAY = "hour", "day"
PARTITIONS = (NO_PARTITIONS, HOUR, DAY)

_MICROSECONDS = {HOUR: 3_600_000_000, DAY: 86_400_000_000}
_NUMPY_TYPES = {HOUR: "datetime64[h]", DAY: "datetime64[D]"}
_FOLDER = re.compile(r"(?:^|/)((timestamp_(?:hour|day))=([-0-9]+)/)[^/]*$")


class TimePartition(NamedTuple):
    """Rows of a batch that are in one partition. `folder` ends with a slash; without partitions it is
    empty."""

    folder: str
    rows: pa.RecordBatch


def check_partition_by(partition_by: str) -> None:
    """Raises ConfigError for what a table cannot be partitioned by."""
    if partition_by not in PARTITIONS:
        raise ConfigError(
            f"no such partitions option=--partition-by value={partition_by} known={','.join(PARTITIONS)}"
        )


def partition_column(partition_by: str) -> str | None:
    """The name of the column of partitions; None for a table without any."""
    return None if partition_by == NO_PARTITIONS else f"timestamp_{partition_by}"


def split_by_time(batch: pa.RecordBatch, partition_by: str) -> Iterator[TimePartition]:
    """The rows of each partition, in their order. All rows have a timestamp."""
    if batch.num_rows == 0:
        return
    if partition_by == NO_PARTITIONS:
        yield TimePartition("", batch)
        return
    microseconds = np.asarray(batch.column("timestamp").cast(pa.int64()))
    ordinals = microseconds // _MICROSECONDS[partition_by]
    for ordinal in np.unique(ordinals):
        places = np.flatnonzero(ordinals == ordinal)
        # Most batches are of one partition. A slice of another would keep the whole batch in memory.
        rows = batch if len(places) == batch.num_rows else batch.take(pa.array(places, pa.int64()))
        text = _text(int(ordinal), partition_by)
        yield TimePartition(f"{partition_column(partition_by)}={text}/", rows)


def folder_of(file: str) -> str:
    """The partition's folder in the name of a file, with its slash; empty without partitions."""
    found = _FOLDER.search(file)
    return "" if found is None else found[1]


def partition_values(file: str) -> dict[str, str | None]:
    """The value of the partition column, by its name; empty without partitions."""
    found = _FOLDER.search(file)
    return {} if found is None else {found[2]: found[3]}


def _text(ordinal: int, partition_by: str) -> str:
    moment = np.array(ordinal, np.int64).astype(_NUMPY_TYPES[partition_by])
    return str(moment).replace("T", "-")
