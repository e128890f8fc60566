"""RemoteStorageManager on an object store: a local folder, memory, S3, GCS or Azure, by URL.

A read is a single ranged GET: the store's answer has the object's whole size, and if that is the
size of the segment, the object holds the segment's own bytes. Only if it is not, the manifest is
read: it shows whether the object is damaged or holds transformed chunks.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Self

from obstore.store import ObjectStore

from isotherm.errors import (
    CorruptMetadataError,
    CorruptObjectError,
    RemoteResourceNotFoundError,
    UnreadableDataError,
    UnsupportedVersionError,
)
from isotherm.remote.plugin import PLACE_KEYS
from isotherm.remote.segment_metadata import IndexType, LogSegmentData, RemoteLogSegmentMetadata
from isotherm.remote.storage.layout.segment_layout import IndexLocation
from isotherm.remote.storage.manifest.aiven_manifest import (
    INDEX_SIZE_MAX,
    MANIFEST_SIZE_MAX,
    SegmentManifest,
    read_manifest,
)
from isotherm.remote.storage.manifest.chunk_index import stored_file_size
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.segment_sources import segment_sources
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.storage.store_check import check_store
from isotherm.remote.storage.transform.chunks import ChunkReader
from isotherm.types import Position


class StagedSegment(NamedTuple):
    """The manifest that will commit a staged segment, and the segment's custom metadata."""

    manifest: bytes
    custom_metadata: bytes | None


class ObjectStoreRemoteStorageManager:
    """Implements isotherm.remote.storage.api.RemoteStorageManager; thread-safe.

    `store` replaces that of the settings' URL, so that two managers can share a store in memory. A
    local folder that does not exist is created.
    """

    def __init__(self, settings: ObjectStoreSettings, *, store: ObjectStore | None = None) -> None:
        if store is None:
            store = open_object_store(settings, create_folder=True)
        self._settings = settings
        self._client = ObjectClient(settings, store)
        self._transforms = settings.create_transforms()
        self._layout = settings.create_layout(self._transforms)
        # A guess by the settings. Older segments may differ, which the size of their object shows.
        self._expects_plain = self._transforms.writes_plain
        self._manifests = _ManifestCache(settings.fetch_manifest_cache_size)

    @property
    def client(self) -> ObjectClient:
        """The store's client, for other objects than those of segments, under `root_directory`."""
        return self._client

    @property
    def root_directory(self) -> str:
        return self._layout.root_directory

    @property
    def location(self) -> str:
        """Bucket and prefix, or the folder."""
        settings = self._settings
        return f"{settings.url.partition('://')[2]}/{settings.key_prefix or ''}".rstrip("/")

    def check_usable(self) -> None:
        """Put, get, list and delete a small object; see isotherm.remote.storage.store_check."""
        if self._settings.start_check_enabled:
            check_store(self._settings, writes=True)

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> Self:
        """Make a manager from the `rsm.config.` keys of a broker. Raises ConfigError like
        `ObjectStoreSettings.from_config`."""
        # Every plug-in gets PLACE_KEYS, and the settings refuse keys that they do not know.
        own = {name: text for name, text in config.items() if name not in PLACE_KEYS}
        return cls(ObjectStoreSettings.from_config(own))

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        return self._upload(metadata, data, None)

    def stage_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> StagedSegment:
        """Same as `copy_log_segment_data`, but return the manifest instead of uploading it: the
        copy is not finished until `commit_log_segment_data`. This manager can read the segment
        already.

        Raises UnsupportedVersionError for a layout without manifests.
        """
        staged: list[bytes] = []
        custom_metadata = self._upload(metadata, data, staged)
        if not staged:
            raise UnsupportedVersionError(
                f"layout keeps no manifests: a segment cannot be staged {_place(metadata)}"
            )
        # The store does not have it yet, and the read-back needs it.
        self._manifests.put(metadata, read_manifest(staged[0]))
        return StagedSegment(staged[0], custom_metadata)

    def commit_log_segment_data(self, metadata: RemoteLogSegmentMetadata, manifest: bytes) -> None:
        """Commit a staged segment. Idempotent.

        Raises RemoteResourceNotFoundError or CorruptObjectError, with nothing stored, if the
        segment's objects no longer exist or have another size.
        """
        key = self._layout.manifest_key(metadata)
        assert key is not None, "a layout without manifests stages nothing"
        log_key, indexes_key, _ = self._layout.object_keys(metadata)
        expected = stored_file_size(read_manifest(manifest).chunk_index)
        with _located(metadata):
            # Recovery may have deleted the staged objects of a slow job. The manifest must not
            # commit a segment without them.
            self._client.object_size(indexes_key)
            size = self._client.object_size(log_key)
            if size != expected:
                raise CorruptObjectError(
                    f"staged object has another size than its manifest says object={log_key}"
                    f" object_size={size} expected={expected}"
                )
        self._client.put(key, manifest)

    def _upload(
        self,
        metadata: RemoteLogSegmentMetadata,
        data: LogSegmentData,
        manifests: list[bytes] | None,
    ) -> bytes | None:
        """Store the objects of a segment; with `manifests` the manifest is appended there
        instead."""
        sources = segment_sources(data)
        # The size was announced before. With a log of another size each read would find damage.
        if sources.log.size != metadata.segment_size_in_bytes:
            raise ValueError(
                f"segment file has another size than its metadata {_place(metadata)}"
                f" file_size={sources.log.size} metadata_size={metadata.segment_size_in_bytes}"
            )
        # A second copy under this id may differ in its chunks, its data key or its manifest.
        self._manifests.forget(metadata)
        uploads = self._layout.uploads(metadata, sources)
        manifest_key = self._layout.manifest_key(metadata)
        while True:
            try:
                upload = next(uploads)
            except StopIteration as end:
                custom_metadata: bytes | None = end.value
                return custom_metadata
            if manifests is not None and upload.key == manifest_key:
                assert isinstance(upload.content, bytes)
                manifests.append(upload.content)
            else:
                self._client.put(upload.key, upload.content)

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        end_position_inclusive: Position | None = None,
    ) -> memoryview:
        size = metadata.segment_size_in_bytes
        end = size if end_position_inclusive is None else min(end_position_inclusive + 1, size)
        if not 0 <= start_position < end:
            raise ValueError(
                f"range is not inside the segment {_place(metadata)} start={start_position}"
                f" end_inclusive={end_position_inclusive} segment_size={size}"
            )
        manifest = self._known_manifest(metadata)
        if manifest is None or manifest.is_plain:
            key = self._layout.log_key(metadata)
            with _located(metadata):
                part = self._client.get_range(key, start_position, end)
            if part.object_size == size:
                return part.data
            manifest = self._transformed_manifest(metadata, key, part.object_size)
        restored = memoryview(bytearray(end - start_position))
        with _located(metadata):
            self._fill_from_chunks(metadata, manifest, start_position, restored, lambda _: None)
        return restored.toreadonly()

    def fetch_log_segment_into(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        buffer: memoryview,
        on_filled: Callable[[int], None],
    ) -> None:
        """See isotherm.remote.storage.api.FillsBuffers."""
        end = start_position + len(buffer)
        size = metadata.segment_size_in_bytes
        if not 0 <= start_position < end <= size:
            raise ValueError(
                f"range is not inside the segment {_place(metadata)} start={start_position}"
                f" end={end} segment_size={size}"
            )
        manifest = self._known_manifest(metadata)
        if manifest is None or manifest.is_plain:
            key = self._layout.log_key(metadata)
            with _located(metadata):
                object_size = self._client.fill(key, start_position, buffer, size, on_filled)
            if object_size is None:
                return
            manifest = self._transformed_manifest(metadata, key, object_size)
        with _located(metadata):
            self._fill_from_chunks(metadata, manifest, start_position, buffer, on_filled)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        manifest = self._manifest(metadata)
        location = self._layout.index_location(metadata, index_type, manifest)
        if location is None:
            raise RemoteResourceNotFoundError(
                f"segment has no such index index={index_type.value} {_place(metadata)}"
            )
        with _located(metadata):
            stored = self._read_index(location)
            if manifest is None or not stored:
                return stored
            for step in reversed(self._transforms.for_read(manifest).index_steps):
                stored = step.undo(stored, len(stored))
            return stored

    def fetch_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        """The metadata in the manifest of the segment with this id and start offset, in the state
        COPY_SEGMENT_FINISHED. Other fields of `metadata` are not used.

        Raises UnsupportedVersionError for a layout without manifests.
        """
        manifest = self._manifest(metadata)
        if manifest is None:
            raise UnsupportedVersionError(f"layout keeps no manifests {_place(metadata)}")
        segment = manifest.segment
        names = (metadata.segment_id, metadata.start_offset)
        if segment is None or (segment.segment_id, segment.start_offset) != names:
            raise CorruptMetadataError(
                f"manifest describes another segment object={self._layout.manifest_key(metadata)}"
            )
        return segment

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the commit mark first: after a crash the rest looks like a copy that never
        ended."""
        self._manifests.forget(metadata)
        for key in reversed(self._layout.object_keys(metadata)):
            self._client.delete(key)

    def close(self) -> None:
        """No effect: connections belong to the store and end with it."""

    def _read_index(self, location: IndexLocation) -> bytes:
        if location.size is None:
            return self._client.get(location.key, INDEX_SIZE_MAX)
        # Nothing is stored of an empty index.
        if location.size == 0:
            return b""
        end = location.position + location.size
        part = self._client.get_range(location.key, location.position, end)
        if len(part.data) != location.size:
            raise CorruptObjectError(
                f"object is shorter than its manifest says object={location.key}"
                f" object_size={part.object_size} index_end={end}"
            )
        return bytes(part.data)

    def _known_manifest(self, metadata: RemoteLogSegmentMetadata) -> SegmentManifest | None:
        """The manifest if it is cached. If segments are expected to be transformed it is fetched,
        because a plain read would be discarded."""
        return self._manifests.get(metadata) if self._expects_plain else self._manifest(metadata)

    def _transformed_manifest(
        self, metadata: RemoteLogSegmentMetadata, key: str, object_size: int
    ) -> SegmentManifest:
        """The manifest of a segment whose object does not have the segment's size.

        Raises CorruptObjectError if the manifest does not explain the size by a transformation.
        """
        try:
            manifest = self._manifest(metadata)
        except RemoteResourceNotFoundError:
            manifest = None
        if manifest is None or manifest.is_plain:
            raise CorruptObjectError(
                f"object has another size than its segment object={key} {_place(metadata)}"
                f" object_size={object_size} segment_size={metadata.segment_size_in_bytes}"
            )
        # Other segments of the bucket are probably transformed too. A plain GET of each would fetch
        # bytes that are discarded.
        self._expects_plain = False
        return manifest

    def _fill_from_chunks(
        self,
        metadata: RemoteLogSegmentMetadata,
        manifest: SegmentManifest,
        start: Position,
        buffer: memoryview,
        on_filled: Callable[[int], None],
    ) -> None:
        """Restore each chunk into the buffer as soon as it has arrived."""
        index = manifest.chunk_index
        key = self._layout.log_key(metadata)
        if index.original_file_size != metadata.segment_size_in_bytes:
            raise CorruptMetadataError(
                f"manifest gives another segment size object={key}"
                f" manifest_size={index.original_file_size}"
            )
        steps = self._transforms.for_read(manifest).chunk_steps
        reader = ChunkReader(index, start, buffer, steps)
        filled = 0

        def restore(stored_count: int) -> None:
            nonlocal filled
            try:
                now_filled = reader.restore(stored_count)
            except CorruptObjectError as error:
                raise CorruptObjectError(f"{error} object={key}") from error
            if now_filled > filled:
                filled = now_filled
                on_filled(filled)

        expected, at = stored_file_size(index), reader.stored_range.start
        object_size = self._client.fill(key, at, reader.stored, expected, restore)
        # `fill` has read nothing if the size differs: a damaged object costs one request.
        if object_size is not None or not reader.is_done:
            raise CorruptObjectError(
                f"object has another size than its manifest says object={key}"
                f" object_size={object_size} expected={expected}"
            )

    def _manifest(self, metadata: RemoteLogSegmentMetadata) -> SegmentManifest | None:
        """The segment's manifest; None for a layout without manifests."""
        key = self._layout.manifest_key(metadata)
        if key is None:
            return None
        cached = self._manifests.get(metadata)
        if cached is not None:
            return cached
        # Without the cache's lock: no reader waits for another's GET. Two may fetch one manifest.
        with _located(metadata):
            manifest = fetch_manifest(self._client, key)
            if describes_another(metadata, manifest):
                raise CorruptMetadataError(f"manifest describes another segment object={key}")
        self._manifests.put(metadata, manifest)
        return manifest


def fetch_manifest(client: ObjectClient, key: str) -> SegmentManifest:
    """Read one manifest. Raises UnreadableDataError with the object's key."""
    data = client.get(key, MANIFEST_SIZE_MAX)
    try:
        return read_manifest(data)
    except UnreadableDataError as error:
        raise type(error)(f"{error} object={key}") from error


def describes_another(metadata: RemoteLogSegmentMetadata, manifest: SegmentManifest) -> bool:
    """Whether the manifest names another segment: its sizes, positions and key are not those of
    this one. Under custom metadata the topic id may be another: `isotherm pipeline rebuild` gives
    the objects of a topic to a new one of its name."""
    named = manifest.segment
    if named is None:
        return False
    own, other = metadata.topic_id_partition, named.topic_id_partition
    if metadata.custom_metadata is not None:
        other = other._replace(topic_id=own.topic_id)
    expected = (own, metadata.segment_id.id, metadata.start_offset)
    return (other, named.segment_id.id, named.start_offset) != expected


class _ManifestCache:
    """The least recently used `capacity` manifests. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        # By the segment's id, which a retried copy does not share.
        self._manifests: OrderedDict[uuid.UUID, SegmentManifest] = OrderedDict()

    def get(self, metadata: RemoteLogSegmentMetadata) -> SegmentManifest | None:
        with self._lock:
            manifest = self._manifests.get(metadata.segment_id.id)
            if manifest is not None:
                self._manifests.move_to_end(metadata.segment_id.id)
            return manifest

    def put(self, metadata: RemoteLogSegmentMetadata, manifest: SegmentManifest) -> None:
        with self._lock:
            self._manifests[metadata.segment_id.id] = manifest
            self._manifests.move_to_end(metadata.segment_id.id)
            while len(self._manifests) > self._capacity:
                self._manifests.popitem(last=False)

    def forget(self, metadata: RemoteLogSegmentMetadata) -> None:
        with self._lock:
            self._manifests.pop(metadata.segment_id.id, None)


def _place(metadata: RemoteLogSegmentMetadata) -> str:
    """The records that an error concerns."""
    partition = metadata.topic_id_partition
    return (
        f"topic={partition.topic} partition={partition.partition}"
        f" offsets={metadata.start_offset}-{metadata.end_offset_inclusive}"
        f" segment={metadata.segment_id}"
    )


@contextmanager
def _located(metadata: RemoteLogSegmentMetadata) -> Iterator[None]:
    """Add the affected records to errors about an object."""
    try:
        yield
    except UnreadableDataError as error:
        raise type(error)(f"{error} {_place(metadata)}") from error
