"""A RemoteLogMetadataManager over the manifests of a bucket, for readers without a cluster.

    ManifestReader ──► BucketContent ──► ManifestMetadataManager

At the start each partition is read alone, in any order. Later each listing of the bucket shows what
is new and what is gone. A segment whose manifest cannot be
read, or whose log is not whole, is left out with a warning: reads of its offsets then end with the
error for a hole.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

from isotherm.errors import (
    PolicyViolationError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    UnsupportedVersionError,
)
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.cached_reads import CachedReads
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
)
from isotherm.remote.storage.inventory import (
    MANIFEST_READ_THREADS,
    DamagedSegment,
    SegmentObjects,
    list_partition,
    list_partitions,
    list_partitions_again,
    open_for_reading,
    read_segment,
)
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import BrokerId, TimestampMs, TopicIdPartition

_logger = logging.getLogger(__name__)

PENDING_MANIFESTS_MAX = 256
"""Segments that are listed and wait for the read of their manifests: some 2 KiB each."""
TopicOfId = tuple[str, uuid.UUID]
_NO_BROKER: BrokerId = -1


class BucketContent(NamedTuple):
    """What a listing of the bucket shows: all finished segments that are whole, and the metadata
    of those that were not known before. Partitions in `unchanged` have what they had at the listing
    before, which `segments` leaves out."""

    segments: frozenset[uuid.UUID]
    new: tuple[RemoteLogSegmentMetadata, ...]
    unchanged: frozenset[TopicIdPartition] = frozenset()


class _Reading(NamedTuple):
    """What was read of listed segments: those that are whole, as in BucketContent, those that are
    damaged, and how many were deleted since the listing."""

    content: BucketContent
    damaged: dict[uuid.UUID, SegmentObjects]
    deleted_count: int


@dataclass(slots=True)
class ReadPace:
    """How many manifests of a partition are read or wait. It may change while they are read."""

    pending_max: int


class ManifestMetadataManager(CachedReads):
    """See `isotherm.remote.metadata.api.RemoteLogMetadataManager`. Every partition of the bucket is
    assigned. The writers raise PolicyViolationError.

    One thread calls `take_over`, and what is for its caller alone; any thread reads."""

    def __init__(self) -> None:
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._owners: dict[uuid.UUID, TopicIdPartition] = {}
        self._newest_ms: dict[TopicOfId, TimestampMs] = {}

    @property
    def segments(self) -> Collection[uuid.UUID]:
        """The ids of all segments. For the caller of `take_over`."""
        return self._owners.keys()

    def take_over(self, content: BucketContent) -> set[TopicIdPartition]:
        """Add the new segments, and drop those that the bucket no longer has. Returns the
        partitions that differ."""
        dropped: dict[TopicIdPartition, list[uuid.UUID]] = defaultdict(list)
        for segment_id in self._owners.keys() - content.segments:
            if self._owners[segment_id] not in content.unchanged:
                dropped[self._owners.pop(segment_id)].append(segment_id)
        for owner, segment_ids in dropped.items():
            _drop(self._caches[owner], segment_ids)
        added = self.add(content.new)
        for owner in dropped:
            if not len(self._caches[owner]):
                del self._caches[owner]
        return added | dropped.keys()

    def add(self, segments: Iterable[RemoteLogSegmentMetadata]) -> set[TopicIdPartition]:
        """Add new segments. Each partition among them counts as read from here on. Returns these
        partitions. For the caller of `take_over`."""
        added: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = defaultdict(list)
        for segment in segments:
            added[segment.topic_id_partition].append(segment)
        for owner, new in added.items():
            if owner not in self._caches:
                self._caches[owner] = RemoteLogMetadataCache(owner)
            _add(self._caches[owner], new)
            self._owners.update((event.segment_id.id, owner) for event in new)
            topic = (owner.topic, owner.topic_id)
            newest_ms = max(event.event_timestamp_ms for event in new)
            self._newest_ms[topic] = max(newest_ms, self._newest_ms.get(topic, newest_ms))
        return set(added)

    def newest_topics(self) -> set[TopicOfId]:
        """The newest topic of each name: a topic that was deleted and created again has another id,
        and what is left of the first one may still be in the bucket. The topic with the newest
        segment counts. For the caller of `take_over`."""
        held = {(owner.topic, owner.topic_id) for owner in self._caches}
        newest: dict[str, TopicOfId] = {}
        for topic in sorted(
            held, key=lambda held_topic: (self._newest_ms[held_topic], str(held_topic[1]))
        ):
            newest[topic[0]] = topic
        return set(newest.values())

    @property
    def partitions(self) -> tuple[TopicIdPartition, ...]:
        """The partitions with a segment. For the caller of `take_over`."""
        return tuple(self._caches)

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> Future[None]:
        _refuse()

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> Future[None]:
        _refuse()

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> Future[None]:
        _refuse()

    def predecessor(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        return None

    def on_partition_leadership_changes(
        self, leaders: Iterable[TopicIdPartition], followers: Iterable[TopicIdPartition]
    ) -> None:
        """Do nothing: every partition is assigned."""

    def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Do nothing: every partition is assigned."""

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return partition in self._caches

    def close(self) -> None:
        """Do nothing: a ManifestReader reads the bucket."""

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        cache = self._caches.get(partition)
        if cache is None:
            raise RemoteResourceNotFoundError(f"no segment of the bucket is of {partition}")
        return cache


class ManifestReader:
    """Reads the manifests of a bucket, each once.

    Several threads may call `read_partition`, each for other partitions. Otherwise for one
    thread."""

    def __init__(
        self,
        settings: ObjectStoreSettings,
        selects_topic: Callable[[str], bool] = lambda topic: True,
    ) -> None:
        """Raises ConfigError if a local folder does not exist, and UnsupportedVersionError for a
        layout without manifests, whose segments only the metadata topic of their cluster
        describes."""
        self._layout = settings.create_layout(settings.create_transforms())
        suffix = self._layout.commit_suffix
        if suffix is None:
            raise UnsupportedVersionError(
                f"a bucket in this layout has no manifests layout={settings.layout}"
                " hint='only its cluster knows its segments'"
            )
        self._commit_suffix = suffix
        self._client = open_for_reading(settings)
        self._selects_topic = selects_topic
        # Each is told once, and read again when its objects differ.
        self._damaged: dict[uuid.UUID, SegmentObjects] = {}
        self._lock = threading.Lock()
        self._folders: dict[TopicIdPartition, str] = {}
        # Of listings of which all manifests are read.
        self._hashes: dict[TopicIdPartition, int | None] = {}

    def read(self, read_before: Collection[uuid.UUID]) -> BucketContent:
        """List the bucket, and read the manifests of segments that are not in `read_before`. It has
        all segments that earlier calls and `read_partition` have returned, unless they are gone.

        At most MANIFEST_READ_THREADS manifests are read at once, and PENDING_MANIFESTS_MAX wait.
        Raises RemoteStorageError if the store does not answer.
        """
        hashes: dict[TopicIdPartition, int | None] = {}
        unchanged: set[TopicIdPartition] = set()

        def changed() -> Iterator[SegmentObjects]:
            for listing in list_partitions_again(
                self._client, self._layout, self._selects_topic, self._hashes
            ):
                hashes[listing.partition] = listing.hash
                if listing.segments is None:
                    unchanged.add(listing.partition)
                else:
                    yield from listing.segments

        with ThreadPoolExecutor(MANIFEST_READ_THREADS, "isotherm-manifests") as pool:
            reading = self._read(changed(), read_before, pool, ReadPace(PENDING_MANIFESTS_MAX))
        self._damaged = reading.damaged | {
            segment_id: objects
            for segment_id, objects in self._damaged.items()
            if objects.segment_id.topic_id_partition in unchanged
        }
        # Not before: manifests that could not be read are read from the next listing.
        self._hashes = hashes
        return reading.content._replace(unchanged=frozenset(unchanged))

    def partitions(self) -> Sequence[TopicIdPartition]:
        """The partitions with a folder, in the order of their names. Their segments are not listed.
        Raises RemoteStorageError if the store does not answer."""
        self._folders = list_partitions(self._client, self._layout, self._selects_topic)
        return tuple(self._folders)

    def has_segment(self) -> bool:
        """Whether one of `partitions` has a manifest. Ends at the first one. Raises
        RemoteStorageError if the store does not answer."""
        return any(
            (key := self._layout.parse_key(stored.key)) and key.suffix == self._commit_suffix
            for folder in self._folders.values()
            for stored in self._client.list_objects(folder)
        )

    def read_partition(
        self, partition: TopicIdPartition, pool: Executor, pace: ReadPace
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """List a partition of `partitions`, and read its manifests in `pool`.

        Raises RemoteStorageError if the store does not answer, or if segments went away meanwhile:
        the caller tries again.
        """
        folder = self._folders[partition]
        listing = list_partition(self._client, self._layout, partition, folder)
        objects = listing.segments or []
        if not objects and not list_partitions(self._client, self._layout, self._selects_topic):
            # A folder that is not mounted lists as an empty one.
            raise RemoteStorageError(f"the bucket lists no objects any more partition={partition}")
        reading = self._read(objects, (), pool, pace)
        if reading.deleted_count:
            # They may be the whole end of the history.
            raise RemoteStorageError(
                "segments were deleted while the partition was read"
                f" partition={partition} segments={reading.deleted_count}"
            )
        with self._lock:
            self._damaged |= reading.damaged
            self._hashes[partition] = listing.hash
        return reading.content.new

    def _read(
        self,
        objects: Iterable[SegmentObjects],
        read_before: Collection[uuid.UUID],
        pool: Executor,
        pace: ReadPace,
    ) -> _Reading:
        deleted_count = 0
        segments: set[uuid.UUID] = set()
        new: list[RemoteLogSegmentMetadata] = []
        damaged: dict[uuid.UUID, SegmentObjects] = {}
        pending: deque[Future[RemoteLogSegmentMetadata | DamagedSegment | None]] = deque()

        def take_first() -> None:
            nonlocal deleted_count
            outcome = pending.popleft().result()
            if isinstance(outcome, DamagedSegment):
                damaged[outcome.objects.segment_id.id] = outcome.objects
                _warn(outcome)
            elif outcome is None:
                deleted_count += 1
            else:
                segments.add(outcome.segment_id.id)
                new.append(outcome)

        for listed in objects:
            segment_id = listed.segment_id.id
            if self._commit_suffix not in listed.objects:
                continue
            if segment_id in read_before:
                segments.add(segment_id)
            elif self._damaged.get(segment_id) == listed:
                damaged[segment_id] = listed
            else:
                pending.append(pool.submit(read_segment, self._client, self._layout, listed))
                if len(pending) >= pace.pending_max:
                    take_first()
        while pending:
            take_first()
        content = BucketContent(frozenset(segments), tuple(new))
        return _Reading(content, damaged, deleted_count)


def _warn(damaged: DamagedSegment) -> None:
    _logger.warning(
        "segment in the bucket is damaged and left out segment=%s start_offset=%d reason='%s'",
        damaged.objects.segment_id,
        damaged.objects.start_offset,
        damaged.error,
    )


def _add(cache: RemoteLogMetadataCache, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
    """Apply the events of these copies, in the order in which they were made."""
    for segment in sorted(
        segments, key=lambda segment: (segment.event_timestamp_ms, segment.end_offset_inclusive)
    ):
        started = RemoteLogSegmentState.COPY_SEGMENT_STARTED
        cache.apply_add(replace(segment, state=started, custom_metadata=None))
        cache.apply_update(
            RemoteLogSegmentMetadataUpdate(
                segment_id=segment.segment_id,
                event_timestamp_ms=segment.event_timestamp_ms,
                state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                broker_id=segment.broker_id,
                custom_metadata=segment.custom_metadata,
            )
        )
    cache.mark_initialized()


def _drop(cache: RemoteLogMetadataCache, segment_ids: Iterable[uuid.UUID]) -> None:
    for segment_id in segment_ids:
        for state in (
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
        ):
            cache.apply_update(
                RemoteLogSegmentMetadataUpdate(
                    segment_id=RemoteLogSegmentId(cache.partition, segment_id),
                    event_timestamp_ms=0,
                    state=state,
                    broker_id=_NO_BROKER,
                )
            )


def _refuse() -> NoReturn:
    raise PolicyViolationError("the metadata of a bucket's manifests is read, never written")
