"""The metadata of one remote segment as plain values, and the keys of its objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isotherm.errors import CorruptMetadataError
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.layout.local_tiered_storage import INDEX_SUFFIXES
from isotherm.remote.storage.layout.segment_layout import Layout
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import uuid_to_text


def named_layout(layout: str, key_prefix: str | None) -> Layout:
    """The layout of this name. No store is opened, since object keys do not depend on the bucket.
    Raises ConfigError."""
    config = {"url": "memory://", "layout": layout}
    if key_prefix is not None:
        config["key.prefix"] = key_prefix
    return ObjectStoreSettings.from_config(config).create_layout()


def object_keys(metadata: RemoteLogSegmentMetadata, layout: Layout) -> tuple[list[str], str | None]:
    """The keys of the objects that the segment has by its metadata, and the custom metadata in hex
    if it is not of this layout."""
    try:
        return _existing(metadata, layout), None
    except CorruptMetadataError:
        plain = replace(metadata, custom_metadata=None)
        return _existing(plain, layout), (metadata.custom_metadata or b"").hex()


def _existing(metadata: RemoteLogSegmentMetadata, layout: Layout) -> list[str]:
    keys = layout.object_keys(metadata)
    if metadata.txn_index_empty:
        # In the Aiven layout it is a part of another object.
        of_none = f".{INDEX_SUFFIXES[IndexType.TRANSACTION]}"
        return [key for key in keys if not key.endswith(of_none)]
    return list(keys)


def segment_facts(metadata: RemoteLogSegmentMetadata, layout: Layout) -> dict[str, Any]:
    """The metadata by name. `end_offset` is inclusive. Times are in milliseconds since 1970."""
    keys, _ = object_keys(metadata, layout)
    custom = metadata.custom_metadata
    return {
        "segment_id": uuid_to_text(metadata.segment_id.id),
        "partition": metadata.topic_id_partition.partition,
        "state": metadata.state.name,
        "start_offset": metadata.start_offset,
        "end_offset": metadata.end_offset_inclusive,
        "size_in_bytes": metadata.segment_size_in_bytes,
        "max_timestamp_ms": metadata.max_timestamp_ms,
        "event_timestamp_ms": metadata.event_timestamp_ms,
        "leader_epochs": {str(e): o for e, o in metadata.segment_leader_epochs.items()},
        "broker_id": metadata.broker_id,
        "transaction_index_is_empty": metadata.txn_index_empty,
        "custom_metadata": None if custom is None else custom.hex(),
        "objects": keys,
    }
