"""Where the list of remote segments comes from: the option `metadata`.

- `topic`: the fold of `__remote_log_metadata`, read from the brokers.
- `bucket`: the manifests in the bucket itself; no broker is needed.

Both give the visible segments only: copied in full, and not (being) deleted.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Protocol

from isotherm.errors import CorruptObjectError
from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.events import iterate_records
from isotherm.remote.metadata.fold import COLUMNAR_RECORDS_MIN, fold_metadata_partition
from isotherm.remote.metadata.keys import metadata_partition
from isotherm.remote.metadata.partition_store import RemotePartitionMetadataStore
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
    the wanted ones, and when it is asked again only what has come since."""

    def __init__(self, topic: MetadataTopic) -> None:
        self._topic = topic
        self._followed: dict[int, _FollowedPartition] = {}

    def visible_segments(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> list[RemoteLogSegmentMetadata]:
        assert partitions is not None, "who can read the metadata topic has the brokers to ask"
        count = self._topic.partition_count
        by_number: dict[int, set[TopicIdPartition]] = defaultdict(set)
        for partition in partitions:
            by_number[metadata_partition(partition, count)].add(partition)
        fresh = [n for n, wanted in by_number.items() if not self._follows(n, wanted)]
        columnar = self._are_many(fresh)
        self._followed = {
            number: self._catch_up(number, frozenset(wanted), columnar=columnar)
            for number, wanted in sorted(by_number.items())
        }
        return [
            segment
            for followed in self._followed.values()
            for segment in followed.segments()
            if _is_visible(segment)
        ]

    def _follows(self, number: int, wanted: AbstractSet[TopicIdPartition]) -> bool:
        followed = self._followed.get(number)
        return followed is not None and followed.wanted == wanted

    def _are_many(self, numbers: Iterable[int]) -> bool:
        """Whether these partitions of the topic, all together, are worth the columnar fold."""
        bounds = map(self._topic.offsets, numbers)
        return sum(end - start for start, end in bounds) >= COLUMNAR_RECORDS_MIN

    def _catch_up(
        self, number: int, wanted: frozenset[TopicIdPartition], *, columnar: bool
    ) -> _FollowedPartition:
        if not self._follows(number, wanted):
            return _FollowedPartition(self._topic, number, wanted, columnar=columnar)
        followed = self._followed[number]
        followed.catch_up()
        return followed


class _FollowedPartition:
    """One partition of the metadata topic, folded for the partitions in `wanted`."""

    def __init__(
        self,
        topic: MetadataTopic,
        number: int,
        wanted: frozenset[TopicIdPartition],
        *,
        columnar: bool,
    ) -> None:
        self.wanted = wanted
        self._topic = topic
        self._number = number
        self._store = RemotePartitionMetadataStore()
        for partition in wanted:
            self._store.open(partition)
        records_min = 0 if columnar else COLUMNAR_RECORDS_MIN
        folded = fold_metadata_partition(
            topic, number, wanted.__contains__, columnar_records_min=records_min
        )
        self._store.install(folded)
        self._next_offset = folded.next_offset

    def catch_up(self) -> None:
        for record in iterate_records(self._topic, self._number, start_offset=self._next_offset):
            self._store.apply_record(record)
            self._next_offset = record.offset + 1

    def segments(self) -> Iterator[RemoteLogSegmentMetadata]:
        for partition in self.wanted:
            cache = self._store.get(partition)
            if cache is not None:
                yield from cache.segments()


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
