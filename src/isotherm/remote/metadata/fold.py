"""The state of remote segments as the whole metadata topic tells it, for readers outside a broker.

A broker follows the partitions it leads (topic_based.py); the command line and Spark read the topic
once, from its first record to the end it has when they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.events import (
    corrupt_record,
    decode_record,
    iterate_records,
    partition_of,
)
from isotherm.remote.metadata.partition_store import RemotePartitionMetadataStore
from isotherm.types import TopicIdPartition


def fold_metadata_topic(
    topic: MetadataTopic,
    wanted: Callable[[TopicIdPartition], bool],
    metadata_partitions: Iterable[int] | None = None,
) -> dict[TopicIdPartition, RemoteLogMetadataCache]:
    """Caches of the partitions that `wanted` accepts, after every event of the topic.

    `metadata_partitions` limits what is read, where the caller knows the topic ids it wants
    (keys.metadata_partition); by default it is all of them. A partition whose deletion is finished
    has no cache. CorruptMetadataError names the record that cannot be applied.
    """
    store = RemotePartitionMetadataStore()
    seen: set[TopicIdPartition] = set()
    read = range(topic.partition_count) if metadata_partitions is None else metadata_partitions
    for metadata_partition in read:
        for record in iterate_records(topic, metadata_partition):
            change = decode_record(record)
            if change.event is not None:
                partition = partition_of(change.event)
                if not wanted(partition):
                    continue
                if partition not in seen:
                    seen.add(partition)
                    store.open(partition)
            try:
                store.apply_change(change)
            except CorruptMetadataError as error:
                raise corrupt_record(record, str(error)) from error
    caches = {partition: store.get(partition) for partition in sorted(seen, key=str)}
    return {partition: cache for partition, cache in caches.items() if cache is not None}
