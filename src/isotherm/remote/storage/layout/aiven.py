"""The object layout of the Aiven tiered-storage plugin, which is also Isotherm's default.

    <key.prefix><topic>-<topic id>/<partition>/<20-digit start offset>-<segment id>.<suffix>

    suffix        content
    log           the `.log` file, or its transformed chunks one after another
    indexes       offset, time, producer snapshot, leader epochs[, transactions], one after another
    rsm-manifest  JSON that says how to read the other two; written last, deleted first

Ids are 22 characters of URL-safe base64 and may contain `-` and `_`, topics may contain `-`. So
names are split from the right, by length. The prefix is put before the key unchanged. Source: the
Aiven plugin's classes ObjectKeyFactory and RemoteStorageManager.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Generator

from isotherm.errors import CorruptMetadataError
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.layout.aiven_custom_metadata import (
    OBJECT_KEY,
    OBJECT_PREFIX,
    REMOTE_SIZE,
    AivenCustomMetadata,
    read_custom_metadata,
)
from isotherm.remote.storage.layout.object_names import (
    parse_partition,
    parse_segment_file,
    segment_file_stem,
    split_prefix,
    split_trailing_uuid,
)
from isotherm.remote.storage.layout.segment_layout import (
    LOG_SUFFIX,
    IndexLocation,
    ObjectUpload,
    SegmentObjectKey,
)
from isotherm.remote.storage.manifest.aiven_manifest import (
    INDEX_MEMBERS,
    SegmentManifest,
    StoredIndex,
    write_manifest,
)
from isotherm.remote.storage.manifest.chunk_index import (
    ChunkIndex,
    plain_chunk_index,
    stored_file_size,
)
from isotherm.remote.storage.segment_sources import SegmentSources, Source, chain_blocks
from isotherm.remote.storage.transform.chunks import ChunkWriter
from isotherm.remote.storage.transform.segment_transforms import (
    SegmentTransform,
    SegmentTransforms,
)
from isotherm.types import TopicIdPartition, uuid_to_text

INDEXES_SUFFIX = "indexes"
MANIFEST_SUFFIX = "rsm-manifest"


class AivenLayout:
    """Thread-safe. `custom_metadata_fields` names the fields that a copy returns (KIP-917).

    If a segment's custom metadata has a prefix or key, all its objects are there, also for a
    deletion. The plugin itself ignores it for the manifest and for deletions.
    """

    def __init__(
        self,
        key_prefix: str,
        chunk_size: int,
        transforms: SegmentTransforms,
        custom_metadata_fields: Collection[str] = (),
    ) -> None:
        self._key_prefix = key_prefix
        self._chunk_size = chunk_size
        self._transforms = transforms
        self._custom_metadata_fields = frozenset(custom_metadata_fields)
        self._root_directory, self._name_prefix = split_prefix(key_prefix)

    @property
    def root_directory(self) -> str:
        return self._root_directory

    @property
    def commit_suffix(self) -> str:
        return MANIFEST_SUFFIX

    def uploads(
        self, metadata: RemoteLogSegmentMetadata, sources: SegmentSources
    ) -> Generator[ObjectUpload, None, bytes | None]:
        log_key, indexes_key, manifest_key = self.object_keys(metadata)
        transform = self._transforms.for_copy(sources.log)
        if transform.is_plain:
            yield ObjectUpload(log_key, sources.log.content)
            chunk_index: ChunkIndex = plain_chunk_index(sources.log.size, self._chunk_size)
        else:
            writer = ChunkWriter(sources.log, self._chunk_size, transform.chunk_steps)
            yield ObjectUpload(log_key, writer.chunks())
            chunk_index = writer.chunk_index()
        stored = [kind for kind in INDEX_MEMBERS if kind in sources.indexes]
        yield ObjectUpload(
            indexes_key,
            chain_blocks(_stored_index(sources.indexes[kind], transform) for kind in stored),
        )
        # Computed, because the manifest is made without a second look at the blocks: encryption
        # adds a fixed number of bytes, and indexes are never compressed.
        sizes = [_stored_index_size(sources.indexes[kind], transform) for kind in stored]
        positions = itertools.accumulate(sizes, initial=0)
        manifest = SegmentManifest(
            chunk_index,
            dict(zip(stored, map(StoredIndex, positions, sizes), strict=True)),
            transform.compression,
            transform.encryption,
            metadata,
        )
        content = write_manifest(manifest)
        yield ObjectUpload(manifest_key, content)
        remote_size = stored_file_size(chunk_index) + sum(sizes) + len(content)
        return self._custom_metadata(metadata, remote_size)

    def object_keys(self, metadata: RemoteLogSegmentMetadata) -> tuple[str, str, str]:
        main = self._main_path(metadata)
        return (
            f"{main}.{LOG_SUFFIX}",
            f"{main}.{INDEXES_SUFFIX}",
            f"{main}.{MANIFEST_SUFFIX}",
        )

    def log_key(self, metadata: RemoteLogSegmentMetadata) -> str:
        return f"{self._main_path(metadata)}.{LOG_SUFFIX}"

    def manifest_key(self, metadata: RemoteLogSegmentMetadata) -> str:
        return f"{self._main_path(metadata)}.{MANIFEST_SUFFIX}"

    def index_location(
        self,
        metadata: RemoteLogSegmentMetadata,
        index_type: IndexType,
        manifest: SegmentManifest | None,
    ) -> IndexLocation | None:
        if manifest is None:
            raise CorruptMetadataError(f"segment has no manifest segment={metadata.segment_id}")
        index = manifest.indexes.get(index_type)
        if index is None:
            return None
        key = f"{self._main_path(metadata)}.{INDEXES_SUFFIX}"
        return IndexLocation(key, index.position, index.size)

    def directory_topic(self, directory: str) -> str | None:
        name = directory.removeprefix(self._root_directory).removeprefix(self._name_prefix)
        split = split_trailing_uuid(name)
        if split is None or not directory.startswith(self._key_prefix):
            return None
        return split[0]

    def directory_partition(self, directory: str) -> TopicIdPartition | None:
        return _parse_directory(directory, self._key_prefix)

    def parse_key(self, key: str) -> SegmentObjectKey | None:
        directory, _, name = key.rpartition("/")
        partition = _parse_directory(directory, self._key_prefix)
        file = parse_segment_file(name)
        if partition is None or file is None:
            return None
        return SegmentObjectKey(partition, file.start_offset, file.segment_uuid, file.suffix)

    def _main_path(self, metadata: RemoteLogSegmentMetadata) -> str:
        """Key of the segment's objects without their suffix."""
        custom = read_custom_metadata(metadata.custom_metadata)
        prefix = self._key_prefix if custom.object_prefix is None else custom.object_prefix
        return prefix + (custom.object_key or _object_key(metadata))

    def _custom_metadata(
        self, metadata: RemoteLogSegmentMetadata, remote_size: int
    ) -> bytes | None:
        fields = self._custom_metadata_fields
        return AivenCustomMetadata(
            remote_size if REMOTE_SIZE in fields else None,
            self._key_prefix if OBJECT_PREFIX in fields else None,
            _object_key(metadata) if OBJECT_KEY in fields else None,
        ).encode()


# A listing names the same few folders with every segment.
@functools.lru_cache(maxsize=1024)
def _parse_directory(directory: str, key_prefix: str) -> TopicIdPartition | None:
    topic_directory, _, digits = directory.removeprefix(key_prefix).partition("/")
    topic, partition = split_trailing_uuid(topic_directory), parse_partition(digits)
    if topic is None or partition is None or not directory.startswith(key_prefix):
        return None
    return TopicIdPartition(topic[1], topic[0], partition)


def _object_key(metadata: RemoteLogSegmentMetadata) -> str:
    partition = metadata.topic_id_partition
    topic_directory = f"{partition.topic}-{uuid_to_text(partition.topic_id)}"
    stem = segment_file_stem(metadata.start_offset, metadata.segment_id.id)
    return f"{topic_directory}/{partition.partition}/{stem}"


def _stored_index(index: Source, transform: SegmentTransform) -> Source:
    """The stored form of an index. Each step transforms it as a whole; an empty one stays empty."""
    if not transform.index_steps or index.size == 0:
        return index
    content = b"".join(index.blocks())
    for step in transform.index_steps:
        content = step.apply(content)
    return Source(content, len(content))


def _stored_index_size(index: Source, transform: SegmentTransform) -> int:
    overhead = sum(step.overhead or 0 for step in transform.index_steps)
    return index.size + overhead if index.size else 0
