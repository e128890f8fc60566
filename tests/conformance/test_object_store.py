"""ObjectStoreRemoteStorageManager, by kind of store and layout."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.conformance.remote_storage import (
    FolderAccess,
    RemoteStorageManagerConformance,
    StoreUnderTest,
)

PART_SIZE = "5242880"

# A file name has 255 bytes at most, and a topic's folder carries its id, partition and prefix too.
LOCAL_TOPIC_LENGTH_MAX = 220


class MemoryAccess:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def object_keys(self) -> set[str]:
        return {entry["path"] for batch in obstore.list(self._store) for entry in batch}

    def read(self, key: str) -> bytes:
        return bytes(obstore.get(self._store, key).bytes())

    def write(self, key: str, content: bytes) -> None:
        obstore.put(self._store, key, content)

    def delete(self, key: str) -> None:
        obstore.delete(self._store, key)


def in_folder(folder: Path, **config: str) -> StoreUnderTest:
    settings = ObjectStoreSettings.from_config(
        {"url": folder.as_uri(), "upload.part.size": PART_SIZE, **config}
    )
    return StoreUnderTest(ObjectStoreRemoteStorageManager(settings), FolderAccess(folder))


class TestLocalFolderAivenLayout(RemoteStorageManagerConformance):
    topic_length_max = LOCAL_TOPIC_LENGTH_MAX

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        return in_folder(tmp_path / "a bucket")


class TestLocalFolderAivenLayoutWithPrefix(RemoteStorageManagerConformance):
    topic_length_max = LOCAL_TOPIC_LENGTH_MAX

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        return in_folder(tmp_path / "bucket", **{"key.prefix": "some/folder/and-"})


class TestLocalFolderLocalTieredStorageLayout(RemoteStorageManagerConformance):
    topic_length_max = LOCAL_TOPIC_LENGTH_MAX

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        return in_folder(tmp_path / "bucket", layout="local-tiered-storage")


class TestMemoryAivenLayout(RemoteStorageManagerConformance):
    @pytest.fixture
    def store(self) -> StoreUnderTest:
        settings = ObjectStoreSettings.from_config(
            {"url": "memory://", "upload.part.size": PART_SIZE}
        )
        memory = MemoryStore()
        manager = ObjectStoreRemoteStorageManager(settings, store=memory)
        return StoreUnderTest(manager, MemoryAccess(memory))
