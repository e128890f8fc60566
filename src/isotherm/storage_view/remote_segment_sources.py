"""The sources of the list of remote segments: the metadata topic, which has segments in every
state, or the bucket itself, which shows only finished segments and needs no metadata topic."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from isotherm.clock import Clock
from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.folding.followed_partition import FollowedPartition
from isotherm.remote.metadata.state.segment_rows import unpack_segment
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.tier.segment_list_sources import BucketSegmentSource
from isotherm.storage_view.remote_segments import NO_SEGMENTS, RemoteSegments
from isotherm.types import Offset, TopicIdPartition

MetadataEnds = Mapping[int, Offset]


class SegmentSource(Protocol):
    """A source of remote segments. Only one thread may use it at a time."""

    def refresh(self, partitions: Collection[TopicIdPartition], ends: MetadataEnds) -> None:
        """Read what is new about these partitions. `ends` has the end offsets of the metadata
        partitions that have a leader, so that a source over the metadata topic can skip those
        without new records, and those that nobody can read."""

    def unread_metadata(self, partition: TopicIdPartition) -> int | None:
        """The metadata partition that has this partition's segments, if it could never be read.
        Its segments are unknown then."""

    def segments(self, partition: TopicIdPartition) -> RemoteSegments:
        """The segments of a partition at the last refresh."""

    def metadata(
        self, partition: TopicIdPartition, segment_id: uuid.UUID
    ) -> RemoteLogSegmentMetadata | None:
        """The metadata of one segment at the last refresh. None if it is unknown."""


class _Numbered:
    """A metadata partition that is followed, and its segments as rows and columns. The columns of a
    partition are built on demand."""

    def __init__(self, followed: FollowedPartition) -> None:
        self.followed = followed
        self.rows: dict[TopicIdPartition, dict[bytes, bytes]] = {}
        self.columns: dict[TopicIdPartition, RemoteSegments] = {}
        self.take()

    def take(self) -> None:
        caches = self.followed.partitions.caches()
        self.rows = {cache.partition: cache.rows_and_keys()[0] for cache in caches}
        self.columns = {}


class MetadataTopicSource:
    """`SegmentSource` over the metadata topic. The first refresh folds the metadata partitions that
    can have events of the wanted topics. A later refresh reads only new records, and makes no
    request for a metadata partition whose end has not moved."""

    def __init__(
        self, topic: MetadataTopic, wants_topic: Callable[[str], bool], clock: Clock
    ) -> None:
        self._topic = topic
        self._wants_topic = wants_topic
        self._clock = clock
        self._numbered: dict[int, _Numbered] = {}
        self.folded_offsets = 0
        """Offsets of the metadata partitions that were folded from their beginning. `fold_s` is the
        time that it took."""
        self.fold_s = 0.0

    def refresh(self, partitions: Collection[TopicIdPartition], ends: MetadataEnds) -> None:
        count = self._topic.partition_count
        for number in sorted({metadata_partition(partition, count) for partition in partitions}):
            # Without a leader there is no new record, so what was read before is still true.
            if number in ends:
                self._refresh_one(number, ends[number])

    def unread_metadata(self, partition: TopicIdPartition) -> int | None:
        number = metadata_partition(partition, self._topic.partition_count)
        return None if number in self._numbered else number

    def segments(self, partition: TopicIdPartition) -> RemoteSegments:
        numbered = self._of(partition)
        if numbered is None or partition not in numbered.rows:
            return NO_SEGMENTS
        if partition not in numbered.columns:
            numbered.columns[partition] = RemoteSegments.of_rows(numbered.rows[partition])
        return numbered.columns[partition]

    def metadata(
        self, partition: TopicIdPartition, segment_id: uuid.UUID
    ) -> RemoteLogSegmentMetadata | None:
        numbered = self._of(partition)
        row = (
            numbered.rows.get(partition, {}).get(segment_id.bytes) if numbered is not None else None
        )
        return unpack_segment(RemoteLogSegmentId(partition, segment_id), row) if row else None

    def _of(self, partition: TopicIdPartition) -> _Numbered | None:
        return self._numbered.get(metadata_partition(partition, self._topic.partition_count))

    def _refresh_one(self, number: int, end: Offset) -> None:
        numbered = self._numbered.get(number)
        if numbered is None or end < numbered.followed.next_offset:
            # An end below the known one means that the topic was deleted and created again.
            began_s = self._clock.monotonic_s()
            followed = FollowedPartition(
                self._topic, number, lambda partition: self._wants_topic(partition.topic)
            )
            self.folded_offsets += followed.catch_up()
            self.fold_s += self._clock.monotonic_s() - began_s
            self._numbered[number] = _Numbered(followed)
        elif end != numbered.followed.next_offset and numbered.followed.catch_up():
            numbered.take()


def open_bucket_source(
    settings: ObjectStoreSettings, wants_topic: Callable[[str], bool]
) -> BucketSource:
    """Open a `BucketSource`. Raises ConfigError if a local folder does not exist. Damaged segments
    are logged as warnings, and stay in the list."""
    bucket = BucketSegmentSource(
        open_for_reading(settings),
        settings.create_layout(),
        fail_on_data_loss=False,
        by_name=False,
    )
    return BucketSource(bucket, wants_topic)


class BucketSource:
    """`SegmentSource` over manifests. A refresh lists the bucket, and reads only new manifests."""

    def __init__(self, bucket: BucketSegmentSource, wants_topic: Callable[[str], bool]) -> None:
        self._bucket = bucket
        self._wants_topic = wants_topic
        self._segments: dict[TopicIdPartition, dict[uuid.UUID, RemoteLogSegmentMetadata]] = {}
        self._columns: dict[TopicIdPartition, RemoteSegments] = {}

    def refresh(self, partitions: Collection[TopicIdPartition], ends: MetadataEnds) -> None:
        del ends
        segments: dict[TopicIdPartition, dict[uuid.UUID, RemoteLogSegmentMetadata]] = defaultdict(
            dict
        )
        for segment in self._bucket.visible_segments(self._wants_topic, partitions):
            segments[segment.topic_id_partition][segment.segment_id.id] = segment
        self._segments = dict(segments)
        self._columns = {
            partition: RemoteSegments.of_metadata(of_partition.values())
            for partition, of_partition in segments.items()
        }

    def unread_metadata(self, partition: TopicIdPartition) -> int | None:
        del partition
        return None

    def segments(self, partition: TopicIdPartition) -> RemoteSegments:
        return self._columns.get(partition, NO_SEGMENTS)

    def metadata(
        self, partition: TopicIdPartition, segment_id: uuid.UUID
    ) -> RemoteLogSegmentMetadata | None:
        return self._segments.get(partition, {}).get(segment_id)
