"""The inventory of a bucket: its objects, grouped by segment, and their manifests.

It needs no metadata topic. It serves readers without one (Spark's `metadata=bucket`), and the
comparison of the bucket with the topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from isotherm.errors import (
    CorruptMetadataError,
    CorruptObjectError,
    RemoteResourceNotFoundError,
    UnreadableDataError,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.layout.segment_layout import LOG_SUFFIX, Layout
from isotherm.remote.storage.manifest.chunk_index import stored_file_size
from isotherm.remote.storage.object_client import ObjectClient, StoredObject, open_object_store
from isotherm.remote.storage.object_store import fetch_manifest
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import Offset, TopicIdPartition

MANIFEST_READ_THREADS = 16
"""Manifests that are read at once. They are small, so reading one is mostly waiting."""
LISTINGS = 2
"""Listings of each folder, made at once. A store that loses a page of a listing, or answers it with
an error under status 200, shows the rest as if it were complete; another listing has that page. The
cost is one request per thousand objects."""
LISTING_THREADS = 16
"""Listings in flight at once; each partition's folder needs LISTINGS of them."""

ListedT = TypeVar("ListedT")


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """The objects of one segment by suffix, as the listing shows them."""

    segment_id: RemoteLogSegmentId
    start_offset: Offset
    objects: dict[str, StoredObject]

    @property
    def size(self) -> int:
        return sum(stored.size for stored in self.objects.values())


@dataclass(frozen=True, slots=True)
class DamagedSegment:
    """A segment with a commit mark that is not whole, and the reason. `segment` is the content of
    its manifest, if only the other objects are damaged."""

    objects: SegmentObjects
    error: UnreadableDataError
    segment: RemoteLogSegmentMetadata | None = None


def open_for_reading(settings: ObjectStoreSettings) -> ObjectClient:
    """A client for `list_segment_objects`. Raises ConfigError if a local folder does not exist."""
    return ObjectClient(settings, open_object_store(settings, create_folder=False))


def list_segment_objects(
    client: ObjectClient,
    layout: Layout,
    wants_topic: Callable[[str], bool] = lambda topic: True,
) -> Iterator[SegmentObjects]:
    """The segments of the wanted topics, whole or not. Foreign objects are ignored.

    An object that one of LISTINGS listings shows exists.
    """
    with ThreadPoolExecutor(LISTING_THREADS, "isotherm-listing") as pool:
        for folders, objects in _list_topics(client, layout, wants_topic, pool):
            yield from _group_by_segment(objects, layout)
            yield from _list_folders(client, layout, folders, pool)


def list_partitions(
    client: ObjectClient, layout: Layout, wants_topic: Callable[[str], bool]
) -> dict[TopicIdPartition, str]:
    """The folder of each partition of the wanted topics, in the order of their names. Nothing in
    the folders is listed: there may be a partition without a whole segment among them."""
    with ThreadPoolExecutor(LISTING_THREADS, "isotherm-listing") as pool:
        return {
            partition: folder + "/"
            for folders, _ in _list_topics(client, layout, wants_topic, pool)
            for folder in folders
            if (partition := layout.directory_partition(folder)) is not None
        }


class PartitionListing(NamedTuple):
    """The segments in the folder of a partition, whole or not; None if a listing is equal to the
    one of which the reader has the hash. `hash` is None if the LISTINGS differ."""

    partition: TopicIdPartition
    segments: list[SegmentObjects] | None
    hash: int | None


def list_partition(
    client: ObjectClient, layout: Layout, partition: TopicIdPartition, folder: str
) -> PartitionListing:
    """The segments in one folder of `list_partitions`."""
    with ThreadPoolExecutor(LISTINGS, "isotherm-listing") as pool:
        first, *others = pool.map(_list_folder, [client] * LISTINGS, [folder] * LISTINGS)
    return _listing(layout, partition, first, others)


def list_partitions_again(
    client: ObjectClient,
    layout: Layout,
    wants_topic: Callable[[str], bool],
    hashes: Mapping[TopicIdPartition, int | None],
) -> Iterator[PartitionListing]:
    """All partitions of the wanted topics. `hashes` are those of earlier listings in this process.

    A folder whose first listing has its hash is not listed once more, and none of its names is
    parsed: what one listing shows exists, and all of it is known.
    """
    folders = list_partitions(client, layout, wants_topic)
    with ThreadPoolExecutor(LISTING_THREADS, "isotherm-listing") as pool:
        under_way: deque[Future[PartitionListing]] = deque()
        for partition, folder in folders.items():
            arguments = (client, layout, partition, folder, hashes.get(partition))
            under_way.append(pool.submit(_list_again, *arguments))
            if len(under_way) >= LISTING_THREADS:
                yield under_way.popleft().result()
        for listing in under_way:
            yield listing.result()


def _list_again(
    client: ObjectClient,
    layout: Layout,
    partition: TopicIdPartition,
    folder: str,
    before: int | None,
) -> PartitionListing:
    first = _list_folder(client, folder)
    if before is not None and _hash(first) == before:
        return PartitionListing(partition, None, before)
    others = [_list_folder(client, folder) for _ in range(LISTINGS - 1)]
    return _listing(layout, partition, first, others)


def _listing(
    layout: Layout,
    partition: TopicIdPartition,
    first: list[StoredObject],
    others: Sequence[list[StoredObject]],
) -> PartitionListing:
    are_equal = all(other == first for other in others)
    segments = _group_by_segment(set(first).union(*others), layout)
    return PartitionListing(partition, segments, _hash(first) if are_equal else None)


def _hash(objects: Iterable[StoredObject]) -> int:
    """Of a listing in its order: names, sizes and times."""
    listed = 0
    for object_ in objects:
        listed = hash((listed, object_))
    return listed


def _list_topics(
    client: ObjectClient,
    layout: Layout,
    wants_topic: Callable[[str], bool],
    pool: ThreadPoolExecutor,
) -> Iterator[tuple[list[str], set[StoredObject]]]:
    """The folders in the folder of each wanted topic, sorted, and the objects beside them."""
    root = layout.root_directory
    topics = _union([pool.submit(client.list_directories, root) for _ in range(LISTINGS)])
    selected = [
        directory + "/"
        for directory in sorted(topics)
        if (topic := layout.directory_topic(directory)) is not None and wants_topic(topic)
    ]
    levels = [
        [pool.submit(client.list_level, directory) for _ in range(LISTINGS)]
        for directory in selected
    ]
    for level in levels:
        folders, objects = zip(*(future.result() for future in level), strict=True)
        yield sorted(set().union(*folders)), set().union(*objects)


def _list_folders(
    client: ObjectClient, layout: Layout, folders: Iterable[str], pool: ThreadPoolExecutor
) -> Iterator[SegmentObjects]:
    """The segments in the folders. LISTING_THREADS folders are listed ahead."""
    # A listing mostly waits for the store, and each partition has a folder: many are in flight.
    under_way: deque[list[Future[list[StoredObject]]]] = deque()
    for folder in folders:
        under_way.append([pool.submit(_list_folder, client, folder + "/") for _ in range(LISTINGS)])
        if len(under_way) >= LISTING_THREADS:
            yield from _group_by_segment(_union(under_way.popleft()), layout)
    for listings in under_way:
        yield from _group_by_segment(_union(listings), layout)


def _list_folder(client: ObjectClient, folder: str) -> list[StoredObject]:
    return list(client.list_objects(folder))


def _union(listings: Iterable[Future[list[ListedT]]]) -> set[ListedT]:
    return set().union(*(listing.result() for listing in listings))


def _group_by_segment(objects: Iterable[StoredObject], layout: Layout) -> list[SegmentObjects]:
    segments: dict[str, SegmentObjects | None] = {}
    # Sorted: of two versions of an object that was replaced between the listings, the later counts.
    for stored in sorted(objects):
        folder_end = stored.key.rfind("/") + 1
        stem_end = stored.key.find(".", folder_end)
        stem, suffix = stored.key[:stem_end], stored.key[stem_end + 1 :]
        if stem not in segments:
            key = layout.parse_key(stored.key)
            # None for a foreign name, so that each stem is parsed once.
            segments[stem] = key and SegmentObjects(key.segment_id, key.start_offset, {})
        segment = segments[stem]
        if segment is not None:
            segment.objects[suffix] = stored
    return [segment for segment in segments.values() if segment is not None]


def read_segment(
    client: ObjectClient, layout: Layout, objects: SegmentObjects
) -> RemoteLogSegmentMetadata | DamagedSegment | None:
    """Read the manifest of a committed segment; None if it was deleted meanwhile."""
    assert layout.commit_suffix is not None, "checked by the caller"
    manifest_key = objects.objects[layout.commit_suffix].key
    described: RemoteLogSegmentMetadata | None = None
    try:
        manifest = fetch_manifest(client, manifest_key)
        segment = manifest.segment
        if segment is None:
            raise CorruptMetadataError(f"manifest describes no segment object={manifest_key}")
        _check_name(objects, manifest_key, segment)
        # From here on only the other objects can be damaged: the offsets are known.
        described = segment
        _check_size(objects, manifest_key, stored_file_size(manifest.chunk_index))
    except RemoteResourceNotFoundError:
        return None
    except UnreadableDataError as error:
        return DamagedSegment(objects, error, described)
    return segment


def _check_name(
    objects: SegmentObjects, manifest_key: str, segment: RemoteLogSegmentMetadata
) -> None:
    if (segment.segment_id, segment.start_offset) != (objects.segment_id, objects.start_offset):
        raise CorruptMetadataError(
            f"manifest describes another segment object={manifest_key}"
            f" segment={segment.segment_id} start_offset={segment.start_offset}"
        )


def _check_size(objects: SegmentObjects, manifest_key: str, stored_size: int) -> None:
    log = objects.objects.get(LOG_SUFFIX)
    # A missing or shorter `.log` is damage, as the manifest is written after it.
    size = None if log is None else log.size
    if size != stored_size:
        raise CorruptObjectError(
            f"segment object is missing or has another size manifest={manifest_key}"
            f" object_size={size} expected={stored_size}"
        )
