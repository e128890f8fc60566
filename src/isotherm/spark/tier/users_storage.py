"""A user's RemoteStorageManager for queries and jobs, with the same checks as in the broker."""

from __future__ import annotations

from typing import Any

from isotherm.errors import UnsupportedVersionError
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.storage.api import ListsSegments
from isotherm.remote.storage.checked_storage_manager import CheckedStorageManager

_STORED = (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
_LIST = "list_log_segments"


class UsersStorage(CheckedStorageManager):
    """Implements isotherm.spark.reading.task_reading.TierStorage; thread-safe."""

    def fetch_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        """Return `metadata` itself: KIP-405 has no manifests."""
        return metadata

    def list_log_segments(self) -> list[RemoteLogSegmentMetadata]:
        """Every segment of the tier (isotherm.remote.storage.api.ListsSegments). Raises
        UnsupportedVersionError if the class lacks the method, and RemoteStorageError for an answer
        that breaks the interface."""
        manager = self._inner
        if not isinstance(manager, ListsSegments):
            raise UnsupportedVersionError(
                "the storage manager cannot list its segments: it lacks a method that KIP-405 does"
                f" not have class={self._calls.class_name} method='{_LIST}()'"
                " hint='add the method, or name the metadata topic where the command can read it'"
            )
        segments: list[Any] = self._calls.call(
            _LIST, "the tier", lambda: list(manager.list_log_segments())
        )
        for segment in segments:
            is_right = isinstance(segment, RemoteLogSegmentMetadata) and segment.state in _STORED
            self._calls.check(
                _LIST,
                getattr(segment, "segment_id", "the tier"),
                "RemoteLogSegmentMetadata in state COPY_SEGMENT_STARTED or COPY_SEGMENT_FINISHED",
                getattr(segment, "state", type(segment)),
                is_right=is_right,
            )
        return segments
