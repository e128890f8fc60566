"""ObjectStoreRemoteStorageManager, by kind of store and layout."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest
from Crypto.PublicKey import RSA
from obstore.store import MemoryStore

from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.conformance.fills_buffers import FillsBuffersConformance
from isotherm.testing.conformance.random_histories import RandomHistoriesConformance
from isotherm.testing.conformance.remote_storage import (
    FolderAccess,
    RemoteStorageManagerConformance,
    StoreUnderTest,
    copied,
)
from isotherm.testing.segment_files import SegmentMaker

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


class TestLocalFolderAivenLayout(
    RandomHistoriesConformance, FillsBuffersConformance, RemoteStorageManagerConformance
):
    topic_length_max = LOCAL_TOPIC_LENGTH_MAX

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        return in_folder(tmp_path / "a bucket")


class TestLocalFolderAivenLayoutWithPrefix(
    FillsBuffersConformance, RemoteStorageManagerConformance
):
    topic_length_max = LOCAL_TOPIC_LENGTH_MAX

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        return in_folder(tmp_path / "bucket", **{"key.prefix": "some/folder/and-"})


class TestLocalFolderLocalTieredStorageLayout(
    RandomHistoriesConformance, FillsBuffersConformance, RemoteStorageManagerConformance
):
    topic_length_max = LOCAL_TOPIC_LENGTH_MAX

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreUnderTest:
        return in_folder(tmp_path / "bucket", layout="local-tiered-storage")


def in_memory(**config: str) -> StoreUnderTest:
    settings = ObjectStoreSettings.from_config(
        {"url": "memory://", "upload.part.size": PART_SIZE, **config}
    )
    memory = MemoryStore()
    manager = ObjectStoreRemoteStorageManager(settings, store=memory)
    return StoreUnderTest(manager, MemoryAccess(memory))


# Small beside the segments of the suite, so that ranges begin and end inside chunks.
CHUNK_SIZE = "4099"


class TestMemoryAivenLayout(FillsBuffersConformance, RemoteStorageManagerConformance):
    @pytest.fixture
    def store(self) -> StoreUnderTest:
        return in_memory()


class TestMemoryAivenLayoutWithAllCustomMetadata(
    FillsBuffersConformance, RemoteStorageManagerConformance
):
    topic_length_max = 20
    """Custom metadata of 128 bytes (Kafka's limit) has this much room for the topic beside the
    key.
    """

    @pytest.fixture
    def store(self) -> StoreUnderTest:
        fields = "REMOTE_SIZE,OBJECT_PREFIX,OBJECT_KEY"
        return in_memory(**{"custom.metadata.fields.include": fields})


class TestMemoryAivenLayoutCompressed(FillsBuffersConformance, RemoteStorageManagerConformance):
    @pytest.fixture
    def store(self) -> StoreUnderTest:
        return in_memory(**{"compression.enabled": "true", "chunk.size": CHUNK_SIZE})


@pytest.fixture(scope="module")
def encryption(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A key pair, and the keys that configure it."""
    folder = tmp_path_factory.mktemp("keys")
    private = RSA.generate(2048)
    (folder / "public.pem").write_bytes(private.public_key().export_key())
    (folder / "private.pem").write_bytes(private.export_key(pkcs=8))
    return {
        "encryption.enabled": "true",
        "encryption.key.pair.id": "first",
        "encryption.key.pairs": "first",
        "encryption.key.pairs.first.public.key.file": str(folder / "public.pem"),
        "encryption.key.pairs.first.private.key.file": str(folder / "private.pem"),
    }


class EncryptedConformance(FillsBuffersConformance, RemoteStorageManagerConformance):
    def test_copy_repeated_changes_nothing(
        self, store: StoreUnderTest, maker: SegmentMaker
    ) -> None:
        """Each copy draws a new key: the bytes of the objects change, their content does not."""
        segment = maker.segment()
        copied(store, segment)
        before = store.raw.object_keys()
        metadata = copied(store, segment)
        assert store.raw.object_keys() == before
        assert store.manager.fetch_log_segment(metadata, 0) == segment.log_bytes()


class TestMemoryAivenLayoutEncrypted(EncryptedConformance):
    @pytest.fixture
    def store(self, encryption: dict[str, str]) -> StoreUnderTest:
        return in_memory(**encryption, **{"chunk.size": CHUNK_SIZE})


class TestMemoryAivenLayoutCompressedAndEncrypted(RandomHistoriesConformance, EncryptedConformance):
    @pytest.fixture
    def store(self, encryption: dict[str, str]) -> StoreUnderTest:
        return in_memory(**encryption, **{"chunk.size": CHUNK_SIZE, "compression.enabled": "true"})
