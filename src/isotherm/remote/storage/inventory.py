"""What the bucket itself says it holds: its objects, grouped by segment, and their manifests.

Needs no metadata topic. Used where there is none at hand (Spark's `metadata=bucket`), and to
compare the bucket with what the topic says.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from isotherm.errors import (
    CorruptDataError,
    CorruptMetadataError,
    CorruptObjectError,
    IsothermError,
    RemoteResourceNotFoundError,
    UnsupportedVersionError,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.layout.api import LOG_SUFFIX, Layout
from isotherm.remote.storage.layout.chunk_index import stored_file_size
from isotherm.remote.storage.object_client import ObjectClient, StoredObject, open_object_store
from isotherm.remote.storage.object_store import fetch_manifest
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import Offset

MANIFEST_READ_THREADS = 16
"""Manifests are small: reading them is waiting for the store, so several are asked for at once."""
LISTINGS = 2
"""How often a folder is listed, at once. A store that loses a page of a listing, or answers one
with an error under status 200, shows the rest as if it were all; another listing has that page. It
costs a request per thousand objects."""

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
    """A segment that claims to be whole and is not, and why."""

    objects: SegmentObjects
    error: IsothermError


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every segment of the bucket is in one of the three lists.

    segments      whole: state COPY_SEGMENT_FINISHED, ordered by topic, partition, start offset
    uncommitted   without the object that is written last: a copy in progress, or what is left of
                  a failed one or of a deletion
    damaged       with it, but it cannot be read, contradicts the listing, or names another segment
    """

    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    uncommitted: list[SegmentObjects] = field(default_factory=list)
    damaged: list[DamagedSegment] = field(default_factory=list)


def open_for_reading(settings: ObjectStoreSettings) -> ObjectClient:
    """A client for `list_segment_objects`; ConfigError when a local folder does not exist."""
    return ObjectClient(settings, open_object_store(settings, create_folder=False))


def read_inventory(
    client: ObjectClient,
    layout: Layout,
    wants_topic: Callable[[str], bool] = lambda topic: True,
) -> Inventory:
    """List the wanted topics and read the manifests of their segments.

    Raises RemoteStorageError when the store fails; damage is reported in the answer, never by
    leaving a segment out. A segment deleted while this runs is in none of the lists.
    UnsupportedVersionError in a layout without manifests: only the metadata topic knows there
    which segments are whole.
    """
    if layout.commit_suffix is None:
        raise UnsupportedVersionError(
            "layout keeps no manifests: segments can only be found through the metadata topic"
        )
    inventory = Inventory()
    committed: list[SegmentObjects] = []
    for objects in list_segment_objects(client, layout, wants_topic):
        is_committed = layout.commit_suffix in objects.objects
        (committed if is_committed else inventory.uncommitted).append(objects)
    with ThreadPoolExecutor(MANIFEST_READ_THREADS, "isotherm-inventory") as pool:
        for outcome in pool.map(lambda objects: read_segment(client, layout, objects), committed):
            if isinstance(outcome, DamagedSegment):
                inventory.damaged.append(outcome)
            elif outcome is not None:
                inventory.segments.append(outcome)
    inventory.segments.sort(key=_place_in_topic)
    return inventory


def list_segment_objects(
    client: ObjectClient,
    layout: Layout,
    wants_topic: Callable[[str], bool] = lambda topic: True,
) -> Iterator[SegmentObjects]:
    """The segments of the wanted topics, whole or not; foreign objects are passed over.

    What is shown by one of LISTINGS listings is there.
    """
    with ThreadPoolExecutor(LISTINGS, "isotherm-listing") as pool:
        for directory in sorted(_union(pool, client.list_directories, layout.root_directory)):
            topic = layout.directory_topic(directory)
            if topic is not None and wants_topic(topic):
                listed = _union(pool, client.list_objects, directory + "/")
                # The later of two that were replaced between the listings, in a settled order.
                listed_in_order = sorted(listed, key=lambda each: (each.key, each.last_modified_ms))
                yield from _group_by_segment(listed_in_order, layout)


def _union(
    pool: ThreadPoolExecutor, listing: Callable[[str], Iterable[ListedT]], directory: str
) -> set[ListedT]:
    listings = pool.map(lambda _: set(listing(directory)), range(LISTINGS))
    return set().union(*listings)


def _group_by_segment(objects: Iterable[StoredObject], layout: Layout) -> list[SegmentObjects]:
    segments: dict[uuid.UUID, SegmentObjects] = {}
    for stored in objects:
        key = layout.parse_key(stored.key)
        if key is not None:
            segment = segments.setdefault(
                key.segment_uuid, SegmentObjects(key.segment_id, key.start_offset, {})
            )
            segment.objects[key.suffix] = stored
    return list(segments.values())


def read_segment(
    client: ObjectClient, layout: Layout, objects: SegmentObjects
) -> RemoteLogSegmentMetadata | DamagedSegment | None:
    """A committed segment by its manifest; None when it was deleted meanwhile."""
    assert layout.commit_suffix is not None, "checked by the caller"
    manifest_key = objects.objects[layout.commit_suffix].key
    try:
        manifest = fetch_manifest(client, manifest_key)
        segment = manifest.segment
        if segment is None:
            raise CorruptMetadataError(f"manifest describes no segment object={manifest_key}")
        _check_listing(objects, manifest_key, segment, stored_file_size(manifest.chunk_index))
    except RemoteResourceNotFoundError:
        return None
    except (CorruptDataError, UnsupportedVersionError) as error:
        return DamagedSegment(objects, error)
    return segment


def _check_listing(
    objects: SegmentObjects,
    manifest_key: str,
    segment: RemoteLogSegmentMetadata,
    stored_size: int,
) -> None:
    if (segment.segment_id, segment.start_offset) != (objects.segment_id, objects.start_offset):
        raise CorruptMetadataError(
            f"manifest describes another segment object={manifest_key}"
            f" segment={segment.segment_id} start_offset={segment.start_offset}"
        )
    log = objects.objects.get(LOG_SUFFIX)
    found = None if log is None else log.size
    if found != stored_size:
        raise CorruptObjectError(
            f"segment object is missing or has another size manifest={manifest_key}"
            f" object_size={found} expected={stored_size}"
        )


def _place_in_topic(segment: RemoteLogSegmentMetadata) -> tuple[str, uuid.UUID, int, Offset]:
    partition = segment.topic_id_partition
    return partition.topic, partition.topic_id, partition.partition, segment.start_offset
