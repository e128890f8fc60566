"""The layout of LocalTieredStorage, the reference storage manager in Apache Kafka's own tests.

    <key.prefix><topic>-<partition>-<topic id>/<20-digit start offset>-<segment id>.<suffix>

    suffix                   content                         written
    log                      the `.log` file                 first
    index                    offset index
    timeindex                time index
    txnindex                 transaction index               only if there is one
    leader_epoch_checkpoint  leader epochs as text           only if not empty
    snapshot                 producer snapshot               last

Kafka puts all of it under `<dir>/kafka-tiered-storage/`, which is this layout's default prefix.
There is no manifest and no commit mark: only the metadata topic knows whether a segment is whole.
Source: Kafka's classes LocalTieredStorage and RemoteLogSegmentFileset.
"""

from __future__ import annotations

from collections.abc import Generator

from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
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
from isotherm.remote.storage.manifest.aiven_manifest import SegmentManifest
from isotherm.remote.storage.segment_sources import SegmentSources
from isotherm.types import TopicIdPartition, uuid_to_text

DEFAULT_KEY_PREFIX = "kafka-tiered-storage/"

INDEX_SUFFIXES = {
    IndexType.OFFSET: "index",
    IndexType.TIMESTAMP: "timeindex",
    IndexType.TRANSACTION: "txnindex",
    IndexType.LEADER_EPOCH: "leader_epoch_checkpoint",
    IndexType.PRODUCER_SNAPSHOT: "snapshot",
}
"""Index types in Kafka's upload order."""


class LocalTieredStorageLayout:
    """Immutable."""

    def __init__(self, key_prefix: str) -> None:
        self._key_prefix = key_prefix
        self._root_directory, self._name_prefix = split_prefix(key_prefix)

    @property
    def root_directory(self) -> str:
        return self._root_directory

    @property
    def commit_suffix(self) -> None:
        return None

    def uploads(
        self, metadata: RemoteLogSegmentMetadata, sources: SegmentSources
    ) -> Generator[ObjectUpload, None, None]:
        yield ObjectUpload(self.log_key(metadata), sources.log.content)
        for kind in INDEX_SUFFIXES:
            source = sources.indexes.get(kind)
            if source is None or (kind is IndexType.LEADER_EPOCH and source.size == 0):
                continue
            yield ObjectUpload(self._index_key(metadata, kind), source.content)

    def object_keys(self, metadata: RemoteLogSegmentMetadata) -> tuple[str, ...]:
        indexes = (self._index_key(metadata, kind) for kind in INDEX_SUFFIXES)
        return (self.log_key(metadata), *indexes)

    def log_key(self, metadata: RemoteLogSegmentMetadata) -> str:
        return f"{self._main_path(metadata)}.{LOG_SUFFIX}"

    def manifest_key(self, metadata: RemoteLogSegmentMetadata) -> None:
        return None

    def index_location(
        self,
        metadata: RemoteLogSegmentMetadata,
        index_type: IndexType,
        manifest: SegmentManifest | None,
    ) -> IndexLocation:
        return IndexLocation(self._index_key(metadata, index_type), 0, None)

    def directory_topic(self, directory: str) -> str | None:
        partition = self.directory_partition(directory)
        return None if partition is None else partition.topic

    def directory_partition(self, directory: str) -> TopicIdPartition | None:
        name = directory.removeprefix(self._key_prefix)
        if not directory.startswith(self._key_prefix) or "/" in name:
            return None
        split = split_trailing_uuid(name)
        if split is None:
            return None
        topic, dash, digits = split[0].rpartition("-")
        partition = parse_partition(digits)
        if not topic or not dash or partition is None:
            return None
        return TopicIdPartition(split[1], topic, partition)

    def parse_key(self, key: str) -> SegmentObjectKey | None:
        directory, _, name = key.rpartition("/")
        partition = self.directory_partition(directory)
        file = parse_segment_file(name)
        if partition is None or file is None:
            return None
        return SegmentObjectKey(partition, file.start_offset, file.segment_uuid, file.suffix)

    def _index_key(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> str:
        return f"{self._main_path(metadata)}.{INDEX_SUFFIXES[kind]}"

    def _main_path(self, metadata: RemoteLogSegmentMetadata) -> str:
        partition = metadata.topic_id_partition
        topic_id = uuid_to_text(partition.topic_id)
        directory = f"{partition.topic}-{partition.partition}-{topic_id}"
        stem = segment_file_stem(metadata.start_offset, metadata.segment_id.id)
        return f"{self._key_prefix}{directory}/{stem}"
