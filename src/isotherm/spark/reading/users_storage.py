"""A storage manager of the user's, as a query reads through it: checked as in the broker."""

from __future__ import annotations

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.checked import CheckedStorageManager


class UsersStorage(CheckedStorageManager):
    """Implements isotherm.spark.reading.task_reading.TierStorage; thread-safe."""

    def fetch_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        """The same: KIP-405 knows no manifests, and all that is known came with the metadata."""
        return metadata
