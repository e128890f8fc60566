"""Where the objects of a segment lie in a store, and what is in them.

A layout decides and never touches the store: the storage manager carries its plans out. The keys
it deals in are relative to the store's URL and begin with the `key.prefix` setting.

    copy     uploads()  -> objects in order; the last is the mark that the segment is whole
    read     log_key(), manifest_key(), index_location()
    delete   object_keys() in reverse order, so that the mark goes first
    listing  root_directory, directory_topic(), parse_key()
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
    """Bytes of one index: from `position`, `size` of them, or the whole object when None."""

    key: str
    position: Position
    size: int | None


class SegmentObjectKey(NamedTuple):
    """What the name of an object tells. The suffix has no dot."""

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
        """Suffix of the object whose presence says that the segment is whole; None: no such."""

    def uploads(
        self, metadata: RemoteLogSegmentMetadata, sources: SegmentSources
    ) -> Generator[ObjectUpload, None, bytes | None]:
        """The objects of a segment in upload order; returns the segment's custom metadata.

        The caller stores each one before it asks for the next: what a later object says may be
        known only when an earlier one has been read.
        """

    def object_keys(self, metadata: RemoteLogSegmentMetadata) -> tuple[str, ...]:
        """Every object this segment may have, in upload order."""

    def log_key(self, metadata: RemoteLogSegmentMetadata) -> str: ...

    def manifest_key(self, metadata: RemoteLogSegmentMetadata) -> str | None:
        """Where the segment's manifest lies; None where the layout has no manifests."""

    def index_location(
        self,
        metadata: RemoteLogSegmentMetadata,
        index_type: IndexType,
        manifest: SegmentManifest | None,
    ) -> IndexLocation | None:
        """Where an index lies, None when the segment has no such index.

        The manifest is given exactly when `manifest_key` names one.
        """

    def directory_topic(self, directory: str) -> str | None:
        """Topic of a folder directly under `root_directory`; None when it is no topic's folder."""

    def parse_key(self, key: str) -> SegmentObjectKey | None:
        """Read a key back from a listing; None when it is not one of this layout."""
