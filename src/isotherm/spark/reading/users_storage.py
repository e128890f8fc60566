"""A user's storage manager for queries, with the same checks as in the broker."""

from __future__ import annotations

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.checked import CheckedStorageManager


class UsersStorage(CheckedStorageManager):
    """Implements isotherm.spark.reading.task_reading.TierStorage; thread-safe."""

    def fetch_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        """The same metadata: KIP-405 has no manifests."""
        return metadata
