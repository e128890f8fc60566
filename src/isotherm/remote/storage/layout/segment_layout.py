"""The layout of a segment in a store: the keys of its objects, and their content.

A layout plans and never accesses the store: the storage manager carries the plans out. Keys are
relative to the store's URL and begin with the `key.prefix` setting.

    copy     uploads()  -> objects in order; the last is the mark that the segment is whole
    read     log_key(), manifest_key(), index_location()
    delete   object_keys() in reverse order, so that the mark goes first
    listing  root_directory, directory_topic(), directory_partition(), parse_key()
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from isotherm.remote.storage.manifest.aiven_manifest import SegmentManifest
from isotherm.remote.storage.segment_sources import SegmentSources
from isotherm.types import Offset, Position, TopicIdPartition

LOG_SUFFIX = "log"


@dataclass(frozen=True, slots=True)
class ObjectUpload:
    """One object to write. An iterable is read once, while it is being uploaded."""

    key: str
    content: Path | bytes | Iterable[bytes]


class IndexLocation(NamedTuple):
    """The bytes of one index: `size` bytes from `position`, or the whole object if `size` is
    None."""

    key: str
    position: Position
    size: int | None


class SegmentObjectKey(NamedTuple):
    """The parsed key of an object. The suffix has no dot."""

    topic_id_partition: TopicIdPartition
    start_offset: Offset
    segment_uuid: uuid.UUID
    suffix: str

    @property
    def segment_id(self) -> RemoteLogSegmentId:
        return RemoteLogSegmentId(self.topic_id_partition, self.segment_uuid)


class Layout(Protocol):
    @property
    def root_directory(self) -> str:
        """The folder that holds the topics' folders: `` or a path that ends in a slash."""

    @property
    def commit_suffix(self) -> str | None:
        """Suffix of the commit mark; None for a layout without one."""

    def uploads(
        self, metadata: RemoteLogSegmentMetadata, sources: SegmentSources
    ) -> Generator[ObjectUpload, None, bytes | None]:
        """The objects of a segment in upload order; returns the segment's custom metadata.

        The caller stores each object before it takes the next one: the content of a later object
        may depend on an earlier one that was read while it was uploaded.
        """

    def object_keys(self, metadata: RemoteLogSegmentMetadata) -> tuple[str, ...]:
        """Every object this segment may have, in upload order. A transaction index that the
        metadata calls empty is among them: the flag may be wrong, and a deletion leaves nothing."""

    def log_key(self, metadata: RemoteLogSegmentMetadata) -> str: ...

    def manifest_key(self, metadata: RemoteLogSegmentMetadata) -> str | None:
        """The key of the segment's manifest; None if the layout has no manifests."""

    def index_location(
        self,
        metadata: RemoteLogSegmentMetadata,
        index_type: IndexType,
        manifest: SegmentManifest | None,
    ) -> IndexLocation | None:
        """The location of an index; None if the segment has no such index.

        `manifest` is given exactly if `manifest_key` returns a key.
        """

    def directory_topic(self, directory: str) -> str | None:
        """The topic of a folder directly under `root_directory`; None for another folder."""

    def directory_partition(self, directory: str) -> TopicIdPartition | None:
        """The partition whose segments lie in a folder; None for another folder."""

    def parse_key(self, key: str) -> SegmentObjectKey | None:
        """Parse a key of a listing; None if it is not one of this layout."""
