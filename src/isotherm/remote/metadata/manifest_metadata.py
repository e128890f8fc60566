"""A RemoteLogMetadataManager over the manifests of a bucket, for readers without a cluster.

It lists the bucket once and never writes. A segment whose manifest cannot be read, or whose log is
not whole, is left out with a warning: reads of its offsets then end with the error for a hole.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NoReturn

from isotherm.errors import (
    PolicyViolationError,
    RemoteResourceNotFoundError,
    UnsupportedVersionError,
)
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.cached_reads import CachedReads
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
)
from isotherm.remote.storage.inventory import (
    MANIFEST_READ_THREADS,
    DamagedSegment,
    SegmentObjects,
    list_segment_objects,
    open_for_reading,
    read_segment,
)
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TopicIdPartition

_logger = logging.getLogger(__name__)


class ManifestMetadataManager(CachedReads):
    """See `isotherm.remote.metadata.api.RemoteLogMetadataManager`. Every partition of the bucket is
    assigned from the start, and stays so. The writers raise PolicyViolationError."""

    def __init__(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """`segments` are finished, in any order."""
        owned: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = defaultdict(list)
        for segment in segments:
            owned[segment.topic_id_partition].append(segment)
        self._caches = {owner: _filled(owner, each) for owner, each in owned.items()}

    @property
    def partitions(self) -> tuple[TopicIdPartition, ...]:
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
        """Do nothing: every partition stays assigned."""

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return partition in self._caches

    def close(self) -> None:
        """Do nothing: the bucket was read by the constructor's caller."""

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        cache = self._caches.get(partition)
        if cache is None:
            raise RemoteResourceNotFoundError(f"no segment of the bucket is of {partition}")
        return cache


def read_manifests(
    settings: ObjectStoreSettings, selects_topic: Callable[[str], bool] = lambda topic: True
) -> list[RemoteLogSegmentMetadata]:
    """The finished segments that the bucket's manifests describe.

    Raises ConfigError if a local folder does not exist, and UnsupportedVersionError for a layout
    without manifests, whose segments only the metadata topic of their cluster describes.
    """
    layout = settings.create_layout(settings.create_transforms())
    suffix = layout.commit_suffix
    if suffix is None:
        raise UnsupportedVersionError(
            f"a bucket in this layout has no manifests layout={settings.layout}"
            " hint='only its cluster knows its segments'"
        )
    client = open_for_reading(settings)
    committed = [
        segment_object
        for segment_object in list_segment_objects(client, layout, selects_topic)
        if suffix in segment_object.objects
    ]

    def read(listed: SegmentObjects) -> RemoteLogSegmentMetadata | DamagedSegment | None:
        return read_segment(client, layout, listed)

    with ThreadPoolExecutor(MANIFEST_READ_THREADS, "isotherm-manifests") as pool:
        outcomes = list(pool.map(read, committed))
    segments = []
    for outcome in outcomes:
        if isinstance(outcome, DamagedSegment):
            objects = outcome.objects
            _logger.warning(
                "segment in the bucket is damaged and left out segment=%s start_offset=%d"
                " reason='%s'",
                objects.segment_id,
                objects.start_offset,
                outcome.error,
            )
        elif outcome is not None:
            segments.append(outcome)
    return segments


def newest_topics(
    segments: Iterable[RemoteLogSegmentMetadata],
) -> list[RemoteLogSegmentMetadata]:
    """The segments of the newest topic of each name.

    A topic that was deleted and created again has another id, and what is left of the first one may
    still be in the bucket. The topic with the newest segment counts; the others are logged.
    """
    by_topic: dict[tuple[str, object], list[RemoteLogSegmentMetadata]] = defaultdict(list)
    for segment in segments:
        owner = segment.topic_id_partition
        by_topic[owner.topic, owner.topic_id].append(segment)
    newest: dict[str, tuple[str, object]] = {}
    times: Mapping[tuple[str, object], int] = {
        topic: max(segment.event_timestamp_ms for segment in held)
        for topic, held in by_topic.items()
    }
    for topic in sorted(by_topic, key=lambda topic: (times[topic], str(topic[1]))):
        other = newest.get(topic[0])
        if other is not None:
            _logger.warning(
                "an earlier topic of this name is left out topic=%s topic_id=%s", *other
            )
        newest[topic[0]] = topic
    return [segment for topic in newest.values() for segment in by_topic[topic]]


def _filled(
    owner: TopicIdPartition, segments: Iterable[RemoteLogSegmentMetadata]
) -> RemoteLogMetadataCache:
    """A cache after the events of these copies, in the order in which they were made."""
    cache = RemoteLogMetadataCache(owner)
    for segment in sorted(
        segments, key=lambda each: (each.event_timestamp_ms, each.end_offset_inclusive)
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
    return cache


def _refuse() -> NoReturn:
    raise PolicyViolationError("the metadata of a bucket's manifests is read, never written")
