"""Folds the metadata topic from its first record to its end into the state of remote segments.

The command line and Spark read the topic once. A broker folds a metadata partition when it starts to
serve a user partition, and follows it from there (metadata_partition_reader.py). Few records are
folded one by one. Many are folded by columns, with the same result: then the time saved exceeds the
time that loading Numba takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import (
    ConditionalMetadataTopic,
    MetadataColumns,
    MetadataTopic,
    MetadataTopicRecord,
)
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
    topic: MetadataTopic, wanted: Wanted
) -> dict[TopicIdPartition, RemoteLogMetadataCache]:
    """Caches of the partitions that `wanted` accepts, after every event of the topic.

    A partition whose deletion is finished has no cache. CorruptMetadataError names the record
    that cannot be applied.
    """
    caches = [
        folded.cache
        for number in range(topic.partition_count)
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
    """Fold one partition of the metadata topic up to its present end, or as far as it can be read: a
    replica may be behind its leader. `Folded.next_offset` is where to read on.

    `on_corrupt` decides about a record that cannot be applied: it raises to end the fold, or
    returns to skip the record. By default the error, which names the record, is raised.
    """
    start, end = bounds = topic.offsets(number)
    # Of this very end: a leader that is asked again may be another one, which has been deposed.
    has_all = (
        topic.has_all_below(number, end)
        if isinstance(topic, ConditionalMetadataTopic)
        else topic.is_current(number)
    )
    if end - start < columnar_records_min:
        folded = _fold_records(topic, number, wanted, on_corrupt or _refuse, bounds)
    else:
        folded = _fold_columns(topic, number, wanted, on_corrupt or _refuse, bounds, run_max_bytes)
    if has_all:
        # Compaction may leave no record before the end.
        return folded._replace(next_offset=max(end, folded.next_offset))
    return folded


def _fold_records(
    topic: MetadataTopic,
    number: int,
    wanted: Wanted,
    on_corrupt: OnCorrupt,
    bounds: tuple[Offset, Offset],
) -> Folded:
    store = RemotePartitionMetadataStore()
    seen: set[TopicIdPartition] = set()
    next_offset, end = bounds
    for record in iterate_records(topic, number, end_offset=end):
        next_offset = record.offset + 1
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
        next_offset,
    )


def _fold_columns(
    topic: MetadataTopic,
    number: int,
    wanted: Wanted,
    on_corrupt: OnCorrupt,
    bounds: tuple[Offset, Offset],
    run_max_bytes: int,
) -> Folded:
    # Here and not above: loading Numba and Arrow takes longer than folding a short topic.
    from isotherm.remote.metadata.folding.columnar_fold import ColumnarFold

    def report(offset: Offset, reason: str) -> None:
        on_corrupt(corrupt_record(MetadataTopicRecord(number, offset, 0, None, None), reason))

    fold = ColumnarFold(wanted, report, waiting_max_bytes=run_max_bytes)
    position, _ = bounds
    for columns in _runs(topic, number, bounds, run_max_bytes):
        fold.feed(columns)
        position = columns.next_offset
    fold.finish()
    return Folded(fold.results(), fold.deleted(), position)


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
