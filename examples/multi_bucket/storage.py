"""A storage manager that spreads segments over several buckets (KIP-917's own example).

    remote.log.storage.manager.class.name=examples.multi_bucket.storage.MultiBucketStorageManager
    rsm.config.buckets=near,far
    rsm.config.bucket.near.url=s3://near-bucket/history
    rsm.config.bucket.far.url=s3://far-bucket/history
    rsm.config.s3.region=eu-west-1

Keys without a bucket's prefix hold for every bucket. Each copy goes to a bucket of its choice,
which is recorded as the segment's custom metadata: so buckets can be added, or their order be
changed, and every segment is still found. A bucket is taken out of the list once nothing in the
metadata names it any more.

Custom metadata: length of the bucket's name (1 byte), the name (UTF-8), and what the bucket's own
storage manager returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from isotherm.errors import ConfigError, CorruptMetadataError
from isotherm.remote.segment_metadata import IndexType, LogSegmentData, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.types import Position

BUCKET_NAME_SIZE_MAX = 32
"""Keeps the custom metadata within Kafka's default limit of 128 bytes."""


class MultiBucketStorageManager:
    """Implements isotherm.remote.storage.api.RemoteStorageManager; thread-safe as its parts are."""

    def __init__(self, buckets: Mapping[str, RemoteStorageManager]) -> None:
        """ConfigError without a bucket, or for a name that does not fit."""
        if not buckets:
            raise ConfigError("at least one bucket is needed key=buckets")
        for name in buckets:
            if not 0 < len(name.encode()) <= BUCKET_NAME_SIZE_MAX:
                raise ConfigError(f"a bucket's name has 1 to 32 bytes key=buckets value={name!r}")
        self._buckets = dict(buckets)

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> Self:
        """Open the buckets that the `rsm.config.` keys of a broker name."""
        names = [name.strip() for name in config.get("buckets", "").split(",") if name.strip()]
        shared = {
            key: value
            for key, value in config.items()
            if key != "buckets" and not key.startswith("bucket.")
        }
        return cls({name: _open(config, name, shared) for name in names})

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        name = self._choose(metadata)
        inner = self._buckets[name].copy_log_segment_data(metadata, data)
        encoded = name.encode()
        return bytes([len(encoded)]) + encoded + (inner or b"")

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        end_position_inclusive: Position | None = None,
    ) -> memoryview:
        bucket, inner = self._locate(metadata)
        return bucket.fetch_log_segment(inner, start_position, end_position_inclusive)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        bucket, inner = self._locate(metadata)
        return bucket.fetch_index(inner, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete a segment's objects.

        A failed copy has no custom metadata, and an earlier attempt may be in another bucket if the
        list of buckets has changed since. So its objects are deleted from every bucket.
        """
        if not metadata.custom_metadata:
            for each in self._buckets.values():
                each.delete_log_segment_data(metadata)
            return
        bucket, inner = self._locate(metadata)
        bucket.delete_log_segment_data(inner)

    def close(self) -> None:
        for bucket in self._buckets.values():
            bucket.close()

    def _choose(self, metadata: RemoteLogSegmentMetadata) -> str:
        """Choose the bucket by the segment's id, so that a repeated copy replaces the first
        attempt.
        """
        names = list(self._buckets)
        return names[metadata.segment_id.id.int % len(names)]

    def _locate(
        self, metadata: RemoteLogSegmentMetadata
    ) -> tuple[RemoteStorageManager, RemoteLogSegmentMetadata]:
        """The bucket that holds a segment, and the metadata as that bucket's manager wrote it."""
        custom = metadata.custom_metadata or b""
        end = 1 + (custom[0] if custom else 0)
        bucket = self._buckets.get(custom[1:end].decode(errors="replace"))
        if bucket is None:
            raise CorruptMetadataError(
                f"segment names no bucket that is configured segment={metadata.segment_id}"
                f" custom_metadata={custom.hex()} configured={','.join(self._buckets)}"
            )
        return bucket, replace(metadata, custom_metadata=custom[end:] or None)


def _open(
    config: Mapping[str, str], name: str, shared: Mapping[str, str]
) -> ObjectStoreRemoteStorageManager:
    prefix = f"bucket.{name}."
    own = {key.removeprefix(prefix): text for key, text in config.items() if key.startswith(prefix)}
    return ObjectStoreRemoteStorageManager.from_config({**shared, **own})
