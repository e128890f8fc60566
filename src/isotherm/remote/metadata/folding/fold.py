"""Folds the metadata topic from its first record to its end into the state of remote segments.

The command line and Spark read the topic once. A broker folds a metadata partition when it starts
to serve a user partition, and follows it from there (metadata_partition_reader.py). Few records are
folded one by one. Many are folded by columns, with the same result, because the time saved then
exceeds the time that loading Arrow and kernels takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import (
    ConditionalMetadataTopic,
    MetadataTopic,
    MetadataTopicRecord,
)
from isotherm.remote.metadata.folding.selected_partitions import (
    SelectedPartitions,
    SelectsPartition,
)
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.partition_store import Folded
from isotherm.remote.metadata.wire.events import corrupt_record, iterate_records
from isotherm.types import Offset, TopicIdPartition

if TYPE_CHECKING:
    from isotherm.remote.metadata.folding.decoded_run import DecodedRun

# Fewer records are folded one by one in less time than loading the kernels takes.
COLUMNAR_RECORDS_MIN = 10_000

# Bytes of a run. A fold takes about seven times as much memory, beside its result.
RUN_MAX_BYTES = 16 * 1024 * 1024

OnCorrupt = Callable[[CorruptMetadataError], None]


def refuse(error: CorruptMetadataError) -> None:
    """An `OnCorrupt` that ends the fold."""
    raise error


def fold_metadata_topic(
    topic: MetadataTopic, selects: SelectsPartition
) -> dict[TopicIdPartition, RemoteLogMetadataCache]:
    """Caches of the partitions that `selects` accepts, after every event of the topic.

    A partition whose deletion is finished has no cache. CorruptMetadataError names the record
    that cannot be applied.
    """
    caches = [
        folded.cache
        for number in range(topic.partition_count)
        for folded in fold_metadata_partition(topic, number, selects).partitions
    ]
    return {
        cache.partition: cache for cache in sorted(caches, key=lambda cache: str(cache.partition))
    }


def fold_metadata_partition(
    topic: MetadataTopic,
    number: int,
    selects: SelectsPartition,
    on_corrupt: OnCorrupt = refuse,
    *,
    columnar_records_min: int = COLUMNAR_RECORDS_MIN,
    run_max_bytes: int = RUN_MAX_BYTES,
) -> Folded:
    """Fold one partition of the metadata topic up to its present end, or as far as it can be read:
    a replica may be behind its leader. The next read starts at `Folded.next_offset`.

    `on_corrupt` decides about a record that cannot be applied: it raises to end the fold, or
    returns to skip the record. By default the error, which names the record, is raised.
    """
    start, end = bounds = topic.offsets(number)
    # Check this very end: a second request for the end may reach another, deposed leader.
    has_all = has_all_below(topic, number, end)
    # Offsets, not records: only a read would tell how many records compaction has left.
    if end - start < columnar_records_min:
        folded = _fold_records(topic, number, selects, on_corrupt, bounds)
    else:
        folded = _fold_columns(topic, number, selects, on_corrupt, bounds, run_max_bytes)
    if has_all:
        # Compaction may leave no record before the end.
        return folded._replace(next_offset=max(end, folded.next_offset))
    return folded


def has_all_below(topic: MetadataTopic, number: int, end: Offset) -> bool:
    """Whether a read that finds no record below `end` means that there is none. A replica may be
    behind its leader."""
    if isinstance(topic, ConditionalMetadataTopic):
        return topic.has_all_below(number, end)
    return topic.is_current(number)


def _fold_records(
    topic: MetadataTopic,
    number: int,
    selects: SelectsPartition,
    on_corrupt: OnCorrupt,
    bounds: tuple[Offset, Offset],
) -> Folded:
    partitions = SelectedPartitions(selects)
    next_offset, end = bounds
    for record in iterate_records(topic, number, end_offset=end):
        next_offset = record.offset + 1
        try:
            partitions.apply(record)
        except CorruptMetadataError as error:
            on_corrupt(error)
    return partitions.folded(next_offset)


def _fold_columns(
    topic: MetadataTopic,
    number: int,
    selects: SelectsPartition,
    on_corrupt: OnCorrupt,
    bounds: tuple[Offset, Offset],
    run_max_bytes: int,
) -> Folded:
    # Here and not above: loading Arrow and kernels takes longer than folding a short topic.
    from isotherm.remote.metadata.folding.columnar_fold import ColumnarFold

    def report(offset: Offset, reason: str) -> None:
        on_corrupt(corrupt_record(MetadataTopicRecord(number, offset, 0, None, None), reason))

    fold = ColumnarFold(selects, report, waiting_max_bytes=run_max_bytes)
    position, _ = bounds
    for run, next_offset in _runs(topic, number, bounds, run_max_bytes):
        fold.feed(run)
        position = next_offset
    fold.finish()
    return fold.partitions.folded(position)


def _runs(
    topic: MetadataTopic, number: int, bounds: tuple[Offset, Offset], run_max_bytes: int
) -> Iterator[tuple[DecodedRun, Offset]]:
    """The records between two offsets, and with each run the offset after it. The last run may have
    records after them, too.

    A run is read and decoded while the one before it is folded: nearly all of both is done without
    the GIL.
    """
    from isotherm.remote.metadata.folding.decoded_run import decode_run

    def read(position: Offset) -> tuple[DecodedRun, Offset]:
        columns = topic.read_columns(number, position, run_max_bytes)
        return decode_run(columns), columns.next_offset

    position, end = bounds
    with ThreadPoolExecutor(1, thread_name_prefix="isotherm-metadata-read") as reader:
        reading = reader.submit(read, position)
        # A read without progress ends the fold: a replica is behind `end`.
        while position < end and (run := reading.result())[1] > position:
            _, position = run
            if position < end:
                reading = reader.submit(read, position)
            yield run
