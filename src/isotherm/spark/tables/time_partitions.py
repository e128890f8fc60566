"""Splits rows into partitions by the time of their records, and names the folders of the files.
Pure.

The name of the column and its values are those of Iceberg's transforms `hour` and `day`:
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
    """The rows of a batch in one partition. `folder` ends with a slash. It is empty if the table
    has no partitions."""

    folder: str
    rows: pa.RecordBatch


def check_partition_by(partition_by: str) -> None:
    """Raise ConfigError for an unknown kind of partitions."""
    if partition_by not in PARTITIONS:
        raise ConfigError(
            f"no such partitions option=--partition-by value={partition_by}"
            f" known={','.join(PARTITIONS)}"
        )


def partition_column(partition_by: str) -> str | None:
    """The name of the partition column. None for a table without partitions."""
    return None if partition_by == NO_PARTITIONS else f"timestamp_{partition_by}"


def split_by_time(batch: pa.RecordBatch, partition_by: str) -> Iterator[TimePartition]:
    """Yield the rows of each partition, in their order. All rows must have a timestamp."""
    if batch.num_rows == 0:
        return
    if partition_by == NO_PARTITIONS:
        yield TimePartition("", batch)
        return
    microseconds = np.asarray(batch.column("timestamp").cast(pa.int64()))
    # Rounds down, so times before 1970 are in the right partition too.
    ordinals = microseconds // _MICROSECONDS[partition_by]
    for ordinal in np.unique(ordinals):
        places = np.flatnonzero(ordinals == ordinal)
        # Most batches have one partition and are not copied. Otherwise copy the rows: a slice would
        # keep the whole batch in memory.
        rows = batch if len(places) == batch.num_rows else batch.take(pa.array(places, pa.int64()))
        text = _text(int(ordinal), partition_by)
        yield TimePartition(f"{partition_column(partition_by)}={text}/", rows)


def folder_of(file: str) -> str:
    """The partition's folder in the name of a file, with its slash. Empty without partitions."""
    folder = _FOLDER.search(file)
    return "" if folder is None else folder[1]


def partition_values(file: str) -> dict[str, str | None]:
    """The value of the partition column in the name of a file, by the column's name. Empty without
    partitions."""
    folder = _FOLDER.search(file)
    return {} if folder is None else {folder[2]: folder[3]}


def _text(ordinal: int, partition_by: str) -> str:
    moment = np.array(ordinal, np.int64).astype(_NUMPY_TYPES[partition_by])
    return str(moment).replace("T", "-")
