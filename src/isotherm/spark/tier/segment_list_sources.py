"""The sources of the list of remote segments, as the option `metadata` chooses them.

- `topic`: the fold of `__remote_log_metadata`, read from the brokers.
- `bucket`: the bucket itself, by its manifests and the names in its listing, or the list that a
  user's RemoteStorageManager gives. No broker is needed.
- `table`: a projection of the metadata topic.

All list only visible segments: those in state COPY_SEGMENT_FINISHED.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from isotherm.errors import CorruptObjectError, UnsupportedVersionError
from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.folding.fold import COLUMNAR_RECORDS_MIN
from isotherm.remote.metadata.folding.followed_partition import FollowedPartition
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.reading.described_log import describe_log
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.inventory import (
    MANIFEST_READ_THREADS,
    DamagedSegment,
    SegmentObjects,
    list_segment_objects,
    read_segment,
)
from isotherm.remote.storage.layout.segment_layout import LOG_SUFFIX, Layout
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.metadata.projection import read_segments
from isotherm.spark.metadata.segment_frames import segments_of
from isotherm.spark.plan.listed_segments import follow_one_another, is_in_order, is_succeeded_by
from isotherm.spark.plan.planning import BlankSegment
from isotherm.types import TopicIdPartition

if TYPE_CHECKING:
    from isotherm.spark.tier.users_storage import UsersStorage


_logger = logging.getLogger(__name__)


class SegmentSource(Protocol):
    def visible_segments(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> list[RemoteLogSegmentMetadata]:
        """The finished segments of the chosen topics, in any order.

        `partitions` (from the brokers) limits the result to these partitions, and so to one
        incarnation of each topic. With None the result has every partition of every incarnation.
        """


class TopicSegmentSource:
    """`SegmentSource` over the metadata topic. It reads only the metadata partitions that can have
    events of the wanted partitions. A later call reads only new events."""

    def __init__(self, topic: MetadataTopic) -> None:
        self._topic = topic
        self._followed: dict[int, tuple[frozenset[TopicIdPartition], FollowedPartition]] = {}

    def visible_segments(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> list[RemoteLogSegmentMetadata]:
        assert partitions is not None, (
            "the metadata topic needs brokers, and they list the partitions"
        )
        count = self._topic.partition_count
        by_number: dict[int, set[TopicIdPartition]] = defaultdict(set)
        for partition in partitions:
            by_number[metadata_partition(partition, count)].add(partition)
        fresh = [n for n, chosen in by_number.items() if not self._follows(n, chosen)]
        columnar = self._are_many(fresh)
        self._followed = {
            number: self._catch_up(number, frozenset(chosen), columnar=columnar)
            for number, chosen in sorted(by_number.items())
        }
        return [
            segment
            for _, followed in self._followed.values()
            for cache in followed.partitions.caches()
            for segment in cache.segments()
            if _is_visible(segment)
        ]

    def _follows(self, number: int, partitions: AbstractSet[TopicIdPartition]) -> bool:
        return number in self._followed and self._followed[number][0] == partitions

    def _are_many(self, numbers: Iterable[int]) -> bool:
        """Whether these metadata partitions together have enough records for the columnar fold. Its
        kernels take time to load, so a few records are folded one by one."""
        bounds = map(self._topic.offsets, numbers)
        return sum(end - start for start, end in bounds) >= COLUMNAR_RECORDS_MIN

    def _catch_up(
        self, number: int, partitions: frozenset[TopicIdPartition], *, columnar: bool
    ) -> tuple[frozenset[TopicIdPartition], FollowedPartition]:
        # A fold for other partitions has passed over the events of these: it is made anew.
        if not self._follows(number, partitions):
            records_min = 0 if columnar else COLUMNAR_RECORDS_MIN
            followed = FollowedPartition(
                self._topic, number, partitions.__contains__, columnar_records_min=records_min
            )
        else:
            _, followed = self._followed[number]
        followed.catch_up()
        return partitions, followed


class UsersSegmentSource:
    """`SegmentSource` over the list that a user's RemoteStorageManager gives. Each call lists
    again."""

    def __init__(self, storage: UsersStorage) -> None:
        self._storage = storage

    def visible_segments(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> list[RemoteLogSegmentMetadata]:
        return [
            segment
            for segment in self._storage.list_log_segments()
            if _is_visible(segment)
            and selects_topic(segment.topic_id_partition.topic)
            and (partitions is None or segment.topic_id_partition in partitions)
        ]


class BucketSegmentSource:
    """`SegmentSource` over the objects in the bucket. A segment with a commit mark that is not
    complete raises CorruptObjectError, or with failOnDataLoss=false logs a warning. A
    `BlankSegment` then takes the place of a segment whose manifest cannot be read. Its log is read,
    to describe it.

    With `by_name`, and if the listing allows it, only the manifests of the last two segments of
    each partition are read; all but the last segment are `ListedSegment`s. A later call reads only
    manifests that are new.
    """

    def __init__(
        self, client: ObjectClient, layout: Layout, *, fail_on_data_loss: bool, by_name: bool
    ) -> None:
        self._client = client
        self._layout = layout
        self._fail_on_data_loss = fail_on_data_loss
        self._by_name = by_name
        self._known: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}

    def visible_segments(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> list[RemoteLogSegmentMetadata]:
        histories = self._committed(selects_topic, partitions)
        ordered = {
            owner: listed
            for owner, listed in histories.items()
            if self._by_name and is_in_order(listed)
        }
        segments = self._read([objects for listed in ordered.values() for objects in listed[-2:]])
        ordered = {o: listed for o, listed in ordered.items() if _ends_in_order(listed, segments)}
        disordered = [listed for o, listed in histories.items() if o not in ordered]
        segments |= self._read([objects for listed in disordered for objects in listed])
        # A manifest never changes, so it is read once. What is listed no more is forgotten.
        self._known = segments
        by_manifest = [listed[-1:] for listed in ordered.values()] + disordered
        return [
            *(segment for listed in ordered.values() for segment in follow_one_another(listed)),
            *(
                segments[e.segment_id]
                for of_partition in by_manifest
                for e in of_partition
                if e.segment_id in segments
            ),
        ]

    def _committed(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> dict[TopicIdPartition, list[SegmentObjects]]:
        """The segments with a manifest of each partition, ascending by start offset."""
        suffix = self._layout.commit_suffix
        if suffix is None:
            raise UnsupportedVersionError(
                "this layout keeps no manifests, the bucket alone does not say which segments are"
                " whole option=metadata value=bucket hint='set kafka.bootstrap.servers, and"
                " metadata=topic'"
            )
        chosen = None if partitions is None else frozenset(partitions)
        histories: dict[TopicIdPartition, list[SegmentObjects]] = defaultdict(list)
        for listed in list_segment_objects(self._client, self._layout, selects_topic):
            owner = listed.segment_id.topic_id_partition
            if suffix in listed.objects and (chosen is None or owner in chosen):
                histories[owner].append(listed)
        for history in histories.values():
            history.sort(key=lambda listed: listed.start_offset)
        return histories

    def _read(
        self, listed: Sequence[SegmentObjects]
    ) -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
        """The metadata in the manifests. Segments that were deleted since the listing are left
        out."""

        def read(segment: SegmentObjects) -> RemoteLogSegmentMetadata | DamagedSegment | None:
            known_segment = self._known.get(segment.segment_id)
            return known_segment or read_segment(self._client, self._layout, segment)

        with ThreadPoolExecutor(MANIFEST_READ_THREADS, "isotherm-manifests") as pool:
            segments = list(pool.map(read, listed))
        described: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        for outcome in segments:
            if isinstance(outcome, DamagedSegment):
                self._report(outcome)
                # It stays part of the history. Otherwise records of an older leader would be read
                # in its place.
                segment = outcome.segment or self._blank(outcome.objects)
                described[outcome.objects.segment_id] = segment
            elif outcome is not None:
                described[outcome.segment_id] = outcome
        return described

    def _blank(self, objects: SegmentObjects) -> BlankSegment:
        blank = BlankSegment.named(objects.segment_id, objects.start_offset)
        log = objects.objects.get(LOG_SUFFIX)
        if log is None:
            return blank
        log_facts = describe_log(self._client, log.key, log.size, objects.start_offset)
        return blank if log_facts is None else blank.described(*log_facts)

    def _report(self, damaged: DamagedSegment) -> None:
        partition = damaged.objects.segment_id.topic_id_partition
        problem = (
            f"segment in the bucket is damaged topic={partition.topic}"
            f" partition={partition.partition} start_offset={damaged.objects.start_offset}"
            f" segment={damaged.objects.segment_id} reason={str(damaged.error)!r}"
        )
        if self._fail_on_data_loss:
            raise CorruptObjectError(
                f"{problem} hint='failOnDataLoss=false reads the others'"
            ) from damaged.error
        _logger.warning("records are left out, failOnDataLoss=false: %s", problem)


def _ends_in_order(
    listed: Sequence[SegmentObjects],
    by_id: Mapping[RemoteLogSegmentId, RemoteLogSegmentMetadata],
) -> bool:
    """Whether the manifests of the last two segments (or of the only one) are sound and confirm the
    order of the names."""
    last_two = [by_id.get(objects.segment_id) for objects in listed[-2:]]
    last = last_two[-1]
    if last is None or any(isinstance(segment, BlankSegment) for segment in last_two):
        return False
    return len(last_two) == 1 or (last_two[0] is not None and is_succeeded_by(last_two[0], last))


def _is_visible(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED


_VISIBLE = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name


class TableSegmentSource:
    """`SegmentSource` over a projection. Each call reads its current state."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._settings = settings

    def visible_segments(
        self, selects_topic: Callable[[str], bool], partitions: Collection[TopicIdPartition] | None
    ) -> list[RemoteLogSegmentMetadata]:
        chosen_partitions = None if partitions is None else frozenset(partitions)
        segments: list[RemoteLogSegmentMetadata] = []
        for table in read_segments(self._settings, filters=[("state", "=", _VISIBLE)]):
            names: list[Any] = pc.unique(table["topic"]).to_pylist()
            topics = [name for name in names if selects_topic(name)]
            chosen = table.filter(pc.is_in(table["topic"], pa.array(topics, pa.string())))
            for batch in chosen.to_batches():
                segments += [
                    segment
                    for segment in segments_of(batch)
                    if chosen_partitions is None or segment.topic_id_partition in chosen_partitions
                ]
        return segments
