"""Custom metadata of the Aiven layout. The bytes are those of the plug-in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from isotherm.errors import CorruptMetadataError, RemoteResourceNotFoundError
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage.layout.aiven_custom_metadata import (
    AivenCustomMetadata,
    read_custom_metadata,
)
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.segment_files import SegmentMaker
from tests.support.bucket_inventory import read_inventory


def test_fields_are_written_as_the_plugin_writes_them() -> None:
    custom = AivenCustomMetadata(remote_size=100, object_key="foo")
    assert custom.encode() == bytes.fromhex("020002c801020404666f6f")
    assert read_custom_metadata(bytes.fromhex("020002c801020404666f6f")) == custom


def test_no_field_is_no_metadata() -> None:
    assert AivenCustomMetadata().encode() is None
    assert read_custom_metadata(None) == AivenCustomMetadata()
    assert read_custom_metadata(b"") == AivenCustomMetadata()


@given(
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | st.text(max_size=40),
    st.none() | st.text(max_size=40),
)
def test_fields_round_trip(size: int | None, prefix: str | None, key: str | None) -> None:
    custom = AivenCustomMetadata(size, prefix, key)
    assert read_custom_metadata(custom.encode()) == custom


def test_unknown_field_is_passed_over() -> None:
    data = bytes.fromhex("020001010902ffff")
    assert read_custom_metadata(data) == AivenCustomMetadata(remote_size=-1)


@given(st.binary(max_size=40))
def test_any_bytes_are_metadata_or_corrupt(data: bytes) -> None:
    try:
        read_custom_metadata(data)
    except CorruptMetadataError:
        return


@pytest.mark.parametrize(
    "data",
    [
        "01",
        "0100",
        "010005",
        "01000202",
        "010002c8",
        "02000202000204",
        "0101040361",
        "01010203ff",
        "00ff",
        "ffffffff0f",
    ],
)
def test_malformed_metadata_is_corrupt(data: str) -> None:
    with pytest.raises(CorruptMetadataError):
        read_custom_metadata(bytes.fromhex(data))


def manager(memory: MemoryStore, prefix: str, fields: str) -> ObjectStoreRemoteStorageManager:
    settings = ObjectStoreSettings.from_config(
        {"url": "memory://", "key.prefix": prefix, "custom.metadata.fields.include": fields}
    )
    return ObjectStoreRemoteStorageManager(settings, store=memory)


def stored_size(memory: MemoryStore) -> int:
    settings = ObjectStoreSettings.from_config({"url": "memory://"})
    return sum(found.size for found in ObjectClient(settings, memory).list_objects(""))


@pytest.mark.parametrize("transform", [{}, {"compression.enabled": "true"}])
def test_remote_size_is_what_the_objects_take(tmp_path: Path, transform: dict[str, str]) -> None:
    memory = MemoryStore()
    segment = SegmentMaker(tmp_path).segment(with_transaction_index=True)
    settings = ObjectStoreSettings.from_config(
        {"url": "memory://", "custom.metadata.fields.include": "REMOTE_SIZE", **transform}
    )
    custom = ObjectStoreRemoteStorageManager(settings, store=memory).copy_log_segment_data(
        segment.metadata, segment.data
    )
    assert read_custom_metadata(custom).remote_size == stored_size(memory)


@pytest.mark.parametrize("fields", ["OBJECT_PREFIX", "OBJECT_PREFIX,OBJECT_KEY"])
def test_segment_is_found_and_deleted_after_the_prefix_changed(tmp_path: Path, fields: str) -> None:
    memory = MemoryStore()
    segment = SegmentMaker(tmp_path).segment()
    before, after = manager(memory, "old/", fields), manager(memory, "new/", fields)
    custom = before.copy_log_segment_data(segment.metadata, segment.data)
    metadata = replace(segment.metadata, custom_metadata=custom)
    assert after.fetch_log_segment(metadata, 0) == segment.log_bytes()
    assert after.fetch_index(metadata, IndexType.OFFSET) == segment.index_bytes(IndexType.OFFSET)
    after.delete_log_segment_data(metadata)
    assert stored_size(memory) == 0


def test_segment_without_custom_metadata_is_looked_for_under_the_setting(tmp_path: Path) -> None:
    memory = MemoryStore()
    segment = SegmentMaker(tmp_path).segment()
    manager(memory, "old/", "").copy_log_segment_data(segment.metadata, segment.data)
    with pytest.raises(RemoteResourceNotFoundError):
        manager(memory, "new/", "").fetch_log_segment(segment.metadata, 0)


def test_inventory_ignores_prefixes_that_are_not_its_own(tmp_path: Path) -> None:
    memory = MemoryStore()
    segment = SegmentMaker(tmp_path).segment()
    manager(memory, "old/", "").copy_log_segment_data(segment.metadata, segment.data)
    settings = ObjectStoreSettings.from_config({"url": "memory://", "key.prefix": "new/"})
    assert read_inventory(ObjectClient(settings, memory), settings.create_layout()).segments == []
