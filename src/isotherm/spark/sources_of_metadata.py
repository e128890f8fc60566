"""Where the list of remote segments comes from: the option `metadata`.

- `topic`: the fold of `__remote_log_metadata`, read from the brokers.
- `bucket`: the manifests in the bucket itself; no broker is needed.

Both give the visible segments only: copied in full, and not (being) deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Protocol

from isotherm.errors import CorruptObjectError
from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.fold import fold_metadata_topic
from isotherm.remote.metadata.keys import metadata_partition
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.storage.inventory import DamagedSegment, read_inventory
from isotherm.remote.storage.layout.api import Layout
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.types import TopicIdPartition

_logger = logging.getLogger(__name__)


class SegmentSource(Protocol):
    def visible_segments(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> list[RemoteLogSegmentMetadata]:
        """Finished segments of the chosen topics, in no particular order.

        `partitions`, when the brokers told them, limits the answer to these and so to one
        incarnation of each topic; None means every partition of every incarnation.
        """


class TopicSegmentSource:
    """`SegmentSource` over the metadata topic: reads only the partitions that can hold events of
    the wanted ones."""

    def __init__(self, topic: MetadataTopic) -> None:
        self._topic = topic

    def visible_segments(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> list[RemoteLogSegmentMetadata]:
        if partitions is None:
            caches = fold_metadata_topic(self._topic, lambda owner: selects_topic(owner.topic))
        else:
            wanted = frozenset(partitions)
            count = self._topic.partition_count
            read = sorted({metadata_partition(partition, count) for partition in wanted})
            caches = fold_metadata_topic(self._topic, wanted.__contains__, read)
        return [s for cache in caches.values() for s in cache.segments() if _is_visible(s)]


class BucketSegmentSource:
    """`SegmentSource` over the manifests in the bucket. A segment that claims to be whole and is
    not raises CorruptObjectError, or is left out with a warning."""

    def __init__(self, client: ObjectClient, layout: Layout, *, fail_on_data_loss: bool) -> None:
        self._client = client
        self._layout = layout
        self._fail_on_data_loss = fail_on_data_loss

    def visible_segments(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> list[RemoteLogSegmentMetadata]:
        wanted = None if partitions is None else frozenset(partitions)
        inventory = read_inventory(self._client, self._layout, selects_topic)
        for damaged in inventory.damaged:
            if wanted is None or damaged.objects.segment_id.topic_id_partition in wanted:
                self._report(damaged)
        return [s for s in inventory.segments if wanted is None or s.topic_id_partition in wanted]

    def _report(self, damaged: DamagedSegment) -> None:
        partition = damaged.objects.segment_id.topic_id_partition
        problem = (
            f"segment in the bucket is damaged topic={partition.topic}"
            f" partition={partition.partition} start_offset={damaged.objects.start_offset}"
            f" segment={damaged.objects.segment_id} reason={str(damaged.error)!r}"
        )
        if self._fail_on_data_loss:
            raise CorruptObjectError(problem) from damaged.error
        _logger.warning("records are left out, failOnDataLoss=false: %s", problem)


def _is_visible(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
