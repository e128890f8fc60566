"""Folds the metadata topic from its first record to its end into the state of remote segments.

The command line and Spark read the topic once. A broker folds a metadata partition when it starts to
serve a user partition, and follows it from there (metadata_partition_reader.py). Few records are
folded one by one. Many are folded by columns, with the same result: then the time saved exceeds the
time that loading Numba takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopic, MetadataTopicRecord
from isotherm.remote.metadata.folding.columnar_fold import ColumnarFold
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.partition_store import (
    Folded,
    FoldedPartition,
    RemotePartitionMetadataStore,
)
from isotherm.remote.metadata.wire.events import (
    corrupt_record,
    decode_record,
    iterate_records,
    partition_of,
)
from isotherm.types import Offset, TopicIdPartition

# Below it, reading record by record takes less than loading the kernels does.
COLUMNAR_RECORDS_MIN = 10_000

# Bytes of a run. It bounds the memory of a fold, about seven times this beside what it results in.
RUN_MAX_BYTES = 16 * 1024 * 1024

Wanted = Callable[[TopicIdPartition], bool]
OnCorrupt = Callable[[CorruptMetadataError], None]


def fold_metadata_topic(
    topic: MetadataTopic, wanted: Wanted, metadata_partitions: Iterable[int] | None = None
) -> dict[TopicIdPartition, RemoteLogMetadataCache]:
    """Caches of the partitions that `wanted` accepts, after every event of the topic.

    `metadata_partitions` limits the read, for a caller that knows the topic ids it wants
    (keys.metadata_partition); by default all are read. A partition whose deletion is finished
    has no cache. CorruptMetadataError names the record that cannot be applied.
    """
    read = range(topic.partition_count) if metadata_partitions is None else metadata_partitions
    caches = [
        folded.cache
        for number in read
        for folded in fold_metadata_partition(topic, number, wanted).partitions
    ]
    return {
        cache.partition: cache for cache in sorted(caches, key=lambda each: str(each.partition))
    }


def fold_metadata_partition(
    topic: MetadataTopic,
    number: int,
    wanted: Wanted,
    on_corrupt: OnCorrupt | None = None,
    *,
    columnar_records_min: int = COLUMNAR_RECORDS_MIN,
    run_max_bytes: int = RUN_MAX_BYTES,
) -> Folded:
    """Fold one partition of the metadata topic up to its present end.

    `on_corrupt` decides about a record that cannot be applied: it raises to end the fold, or
    returns to skip the record. By default the error, which names the record, is raised.
    """
    start, end = topic.offsets(number)
    if end - start < columnar_records_min:
        return _fold_records(topic, number, wanted, on_corrupt or _refuse, end)
    return _fold_columns(topic, number, wanted, on_corrupt or _refuse, (start, end), run_max_bytes)


def _fold_records(
    topic: MetadataTopic, number: int, wanted: Wanted, on_corrupt: OnCorrupt, end: Offset
) -> Folded:
    store = RemotePartitionMetadataStore()
    seen: set[TopicIdPartition] = set()
    for record in iterate_records(topic, number):
        if record.offset >= end:
            break
        try:
            change = decode_record(record)
            if change.event is not None:
                partition = partition_of(change.event)
                if not wanted(partition):
                    continue
                if partition not in seen:
                    seen.add(partition)
                    store.open(partition)
            store.apply_record(record, change)
        except CorruptMetadataError as error:
            on_corrupt(error)
    return Folded(
        [
            FoldedPartition(cache, store.deletion(cache.partition))
            for cache in map(store.get, seen)
            if cache is not None
        ],
        [event for event in map(store.finished_deletion, seen) if event is not None],
        end,
    )


def _fold_columns(
    topic: MetadataTopic,
    number: int,
    wanted: Wanted,
    on_corrupt: OnCorrupt,
    bounds: tuple[Offset, Offset],
    run_max_bytes: int,
) -> Folded:
    def report(offset: Offset, reason: str) -> None:
        on_corrupt(corrupt_record(MetadataTopicRecord(number, offset, 0, None, None), reason))

    fold = ColumnarFold(wanted, report)
    position, _ = bounds
    for columns in _runs(topic, number, bounds, run_max_bytes):
        fold.feed(columns)
        position = columns.next_offset
    partitions = [FoldedPartition(*result) for result in fold.results()]
    return Folded(partitions, fold.deleted(), position)


def _runs(
    topic: MetadataTopic, number: int, bounds: tuple[Offset, Offset], run_max_bytes: int
) -> Iterator[MetadataColumns]:
    """The records between two offsets, and what the last read brings of those after them.

    A run is read while the one before it is folded: nearly all of both is done without the GIL.
    """
    position, end = bounds
    with ThreadPoolExecutor(1, thread_name_prefix="isotherm-metadata-read") as reader:
        reading = reader.submit(topic.read_columns, number, position, run_max_bytes)
        while position < end and (columns := reading.result()).next_offset > position:
            position = columns.next_offset
            if position < end:
                reading = reader.submit(topic.read_columns, number, position, run_max_bytes)
            yield columns


def _refuse(error: CorruptMetadataError) -> None:
    raise error
