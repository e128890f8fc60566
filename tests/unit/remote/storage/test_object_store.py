"""Behaviour of ObjectStoreRemoteStorageManager beyond the conformance suite."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError
from obstore.store import LocalStore, MemoryStore

from isotherm.errors import (
    ConfigError,
    CorruptMetadataError,
    CorruptObjectError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageThrottledError,
)
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage.layout.aiven_custom_metadata import AivenCustomMetadata
from isotherm.remote.storage.manifest.aiven_manifest import (
    read_manifest,
    write_manifest,
)
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.segment_files import MadeSegment, SegmentMaker

PART_SIZE = 5 * 1024 * 1024


class Setup:
    """A manager over a store in memory. Requests to the store are recorded."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **config: str) -> None:
        self.maker = SegmentMaker(tmp_path / "segments")
        self.memory = MemoryStore()
        settings = ObjectStoreSettings.from_config({"url": "memory://", **config})
        self.manager = ObjectStoreRemoteStorageManager(settings, store=self.memory)
        self.requests: list[tuple[str, str]] = []
        for name in ("get", "head", "put", "delete"):
            monkeypatch.setattr(obstore, name, self._counting(name, getattr(obstore, name)))

    def _counting(self, name: str, call: Any) -> Any:
        def counted(store: Any, key: str, *args: Any, **options: Any) -> Any:
            self.requests.append((name, key.rpartition(".")[2]))
            return call(store, key, *args, **options)

        return counted

    def copied(self, **options: Any) -> MadeSegment:
        segment = self.maker.segment(**options)
        self.manager.copy_log_segment_data(segment.metadata, segment.data)
        return segment

    def objects(self) -> dict[str, bytes]:
        """The objects by the suffix of their keys."""
        keys = [entry["path"] for batch in obstore.list(self.memory) for entry in batch]
        return {
            key.rpartition(".")[2]: bytes(obstore.get(self.memory, key).bytes()) for key in keys
        }

    def rewrite_manifest(self, **changes: Any) -> None:
        (key,) = (
            entry["path"]
            for batch in obstore.list(self.memory)
            for entry in batch
            if entry["path"].endswith("rsm-manifest")
        )
        manifest = read_manifest(bytes(obstore.get(self.memory, key).bytes()))
        obstore.put(self.memory, key, write_manifest(replace(manifest, **changes)))
        self.requests.clear()


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(tmp_path, monkeypatch)


# -- requests


def test_copy_writes_the_manifest_last_and_delete_removes_it_first(setup: Setup) -> None:
    segment = setup.copied()
    assert setup.requests == [("put", "log"), ("put", "indexes"), ("put", "rsm-manifest")]
    setup.requests.clear()
    setup.manager.delete_log_segment_data(segment.metadata)
    assert setup.requests == [("delete", "rsm-manifest"), ("delete", "indexes"), ("delete", "log")]


def test_read_of_a_plain_segment_is_one_request(setup: Setup) -> None:
    segment = setup.copied()
    setup.requests.clear()
    setup.manager.fetch_log_segment(segment.metadata, 100, 199)
    assert setup.requests == [("get", "log")]


def test_indexes_share_one_manifest_request(setup: Setup) -> None:
    segment = setup.copied(with_transaction_index=True)
    setup.requests.clear()
    for kind in IndexType:
        setup.manager.fetch_index(segment.metadata, kind)
    assert setup.requests == [("get", "rsm-manifest")] + [("get", "indexes")] * 5


def test_manifest_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(tmp_path, monkeypatch, **{"fetch.manifest.cache.size": "2"})
    segments = [setup.copied() for _ in range(3)]
    for segment in segments:
        setup.manager.fetch_index(segment.metadata, IndexType.OFFSET)
    setup.requests.clear()
    setup.manager.fetch_index(segments[2].metadata, IndexType.OFFSET)
    setup.manager.fetch_index(segments[0].metadata, IndexType.OFFSET)
    assert setup.requests.count(("get", "rsm-manifest")) == 1


def test_empty_index_needs_no_request_of_its_own(setup: Setup) -> None:
    segment = setup.copied(index_entries=0)
    setup.requests.clear()
    assert setup.manager.fetch_index(segment.metadata, IndexType.OFFSET) == b""
    assert setup.requests == [("get", "rsm-manifest")]


# -- manifests that contradict the metadata


def test_unreadable_manifest_is_corrupt_and_named(setup: Setup) -> None:
    segment = setup.copied(start_offset=7, record_count=3)
    for key in [e["path"] for batch in obstore.list(setup.memory) for e in batch]:
        obstore.put(setup.memory, key, b"{}")
    with pytest.raises(CorruptMetadataError, match=r"rsm-manifest.*partition=0 offsets=7-9"):
        setup.manager.fetch_index(segment.metadata, IndexType.OFFSET)


def test_indexes_object_shorter_than_its_manifest_is_corrupt_and_named(setup: Setup) -> None:
    segment = setup.copied()
    for key in [e["path"] for batch in obstore.list(setup.memory) for e in batch]:
        if key.endswith(".indexes"):
            obstore.put(setup.memory, key, b"short")
    with pytest.raises(CorruptObjectError, match=r"indexes.*topic=flights partition=0 offsets="):
        setup.manager.fetch_index(segment.metadata, IndexType.TIMESTAMP)


def test_manifest_that_is_gone_leaves_a_short_segment_corrupt(setup: Setup) -> None:
    segment = setup.copied()
    for key in [e["path"] for batch in obstore.list(setup.memory) for e in batch]:
        if key.endswith(".log"):
            obstore.put(setup.memory, key, b"short")
        else:
            obstore.delete(setup.memory, key)
    with pytest.raises(CorruptObjectError, match="object_size=5 segment_size=20000"):
        setup.manager.fetch_log_segment(segment.metadata, 0, 3)


# -- failures


def test_copy_of_a_file_that_disagrees_with_its_metadata_is_refused(setup: Setup) -> None:
    segment = setup.maker.segment(size=100)
    metadata = replace(segment.metadata, segment_size_in_bytes=99)
    with pytest.raises(ValueError, match="file_size=100 metadata_size=99"):
        setup.manager.copy_log_segment_data(metadata, segment.data)
    assert setup.objects() == {}


def test_copy_of_a_file_that_is_gone_is_tried_again_later(setup: Setup) -> None:
    segment = setup.maker.segment()
    segment.data.time_index_path.unlink()
    with pytest.raises(RemoteStorageError, match="local segment file"):
        setup.manager.copy_log_segment_data(segment.metadata, segment.data)


def test_file_that_vanishes_during_the_upload_is_no_missing_object(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = setup.maker.segment()
    put = obstore.put

    def put_after_deletion(store: Any, key: str, content: Any, **options: Any) -> Any:
        segment.data.log_path.unlink(missing_ok=True)
        return put(store, key, content, **options)

    monkeypatch.setattr(obstore, "put", put_after_deletion)
    with pytest.raises(RemoteStorageError):
        setup.manager.copy_log_segment_data(segment.metadata, segment.data)


def test_index_that_vanishes_during_the_upload_stores_no_manifest(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = setup.maker.segment()
    put = obstore.put

    def put_then_delete(store: Any, key: str, content: Any, **options: Any) -> Any:
        result = put(store, key, content, **options)
        segment.data.producer_snapshot_path.unlink(missing_ok=True)
        return result

    monkeypatch.setattr(obstore, "put", put_then_delete)
    with pytest.raises(RemoteStorageError):
        setup.manager.copy_log_segment_data(segment.metadata, segment.data)
    assert set(setup.objects()) == {"log"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Server returned non-2xx status code: 503: SlowDown", RemoteStorageThrottledError),
        ("status code: 429 Too Many Requests", RemoteStorageThrottledError),
        ("error sending request: connection refused", RemoteStorageError),
        ("GET http://store/t-id/503/0.log - status code: 500", RemoteStorageError),
    ],
)
def test_failing_store_is_a_retriable_error_with_its_cause(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, text: str, expected: type[Exception]
) -> None:
    segment = setup.copied()

    def fail(*args: Any, **options: Any) -> Any:
        raise GenericError(text)

    for name in ("get", "put", "delete"):
        monkeypatch.setattr(obstore, name, fail)
    for call in (
        lambda: setup.manager.fetch_log_segment(segment.metadata, 0),
        lambda: setup.manager.copy_log_segment_data(segment.metadata, segment.data),
        lambda: setup.manager.delete_log_segment_data(segment.metadata),
    ):
        with pytest.raises(RemoteStorageError) as raised:
            call()
        assert type(raised.value) is expected
        assert isinstance(raised.value.__cause__, GenericError)


def test_body_shorter_than_announced_is_corrupt(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = setup.copied()
    get = obstore.get

    class Short:
        def __init__(self, result: Any) -> None:
            self.meta = result.meta
            self._content = bytes(result.bytes())

        def bytes(self) -> bytes:
            return self._content[:-1]

    monkeypatch.setattr(obstore, "get", lambda *args, **options: Short(get(*args, **options)))
    with pytest.raises(CorruptObjectError, match=r"received=9.*topic=flights"):
        setup.manager.fetch_log_segment(segment.metadata, 0, 9)


@pytest.mark.parametrize("pieces", [[b"123456789"], [b"12345", b"678901"], []])
def test_stream_of_another_length_than_announced_is_corrupt(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    segment = setup.copied()
    get = obstore.get

    class Wrong:
        def __init__(self, result: Any) -> None:
            self.meta = result.meta

        def stream(self, min_chunk_size: int) -> list[bytes]:
            return pieces

    monkeypatch.setattr(obstore, "get", lambda *args, **options: Wrong(get(*args, **options)))
    filled: list[int] = []
    received = len(b"".join(pieces))
    with pytest.raises(CorruptObjectError, match=rf"received={received} .*topic=flights"):
        setup.manager.fetch_log_segment_into(
            segment.metadata, 0, memoryview(bytearray(10)), filled.append
        )
    assert filled == []


def test_file_cut_short_fills_no_buffer(setup: Setup, folder: Path) -> None:
    manager = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=folder.as_uri()))
    segment = setup.maker.segment(size=20_000)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    (path,) = folder.rglob("*.log")
    with path.open("r+b") as file:
        file.truncate(19_999)
    with pytest.raises(CorruptObjectError, match=r"object_size=19999 segment_size=20000"):
        manager.fetch_log_segment_into(
            segment.metadata, 0, memoryview(bytearray(100)), lambda _: None
        )


def test_refused_range_of_a_whole_object_is_a_failure_of_the_store(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal means "no such bytes" only if the object ends before the range."""
    segment = setup.copied()

    def refuse(*args: Any, **options: Any) -> Any:
        raise GenericError("Range requests are switched off")

    monkeypatch.setattr(obstore, "get", refuse)
    with pytest.raises(RemoteStorageError):
        setup.manager.fetch_log_segment(segment.metadata, 0, 9)


# -- the local folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


def client_of(folder: Path) -> ObjectClient:
    settings = ObjectStoreSettings.from_config(
        {"url": folder.as_uri(), "upload.part.size": str(PART_SIZE)}
    )
    return ObjectClient(settings, open_object_store(settings, create_folder=True))


def test_folder_object_is_complete_or_absent(folder: Path) -> None:
    """A reader that lists during the upload does not see the object."""
    client = client_of(folder)
    seen: list[bool] = []

    def blocks() -> Iterator[bytes]:
        for _ in range(3):
            yield bytes(PART_SIZE)
            seen.append((folder / "a/b.log").exists())

    client.put("a/b.log", blocks())
    assert seen == [False, False, False]
    assert [(found.key, found.size) for found in client.list_objects("")] == [
        ("a/b.log", 3 * PART_SIZE)
    ]


def test_file_is_copied_into_a_folder_beside_what_a_crash_has_left(
    folder: Path, tmp_path: Path
) -> None:
    client = client_of(folder)
    source = tmp_path / "00.log"
    (folder / "a").mkdir()
    (folder / "a/b.log#1").write_bytes(b"unfinished")
    in_several_pieces = bytes(range(256)) * 40_000
    for content in (b"first", in_several_pieces, b""):
        source.write_bytes(content)
        client.put("a/b.log", source)
        assert (folder / "a/b.log").read_bytes() == content
    assert [found.key for found in client.list_objects("")] == ["a/b.log"]
    assert sorted(path.name for path in (folder / "a").iterdir()) == ["b.log", "b.log#1"]


def test_file_is_copied_into_a_folder_where_the_kernel_copies_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.delattr("os.sendfile")
    monkeypatch.delattr("os.posix_fadvise")
    content = bytes(range(256)) * 20_000  # more than one piece
    (tmp_path / "file").write_bytes(content)
    client_of(folder).put("a/b.log", tmp_path / "file")
    assert (folder / "a/b.log").read_bytes() == content


def test_file_that_cannot_be_read_leaves_nothing_in_the_folder(
    folder: Path, tmp_path: Path
) -> None:
    client = client_of(folder)
    with pytest.raises(RemoteStorageError, match=r"a/b\.log"):
        client.put("a/b.log", tmp_path / "gone.log")
    assert list((folder / "a").iterdir()) == []


def test_folder_object_that_failed_halfway_is_absent(folder: Path) -> None:
    client = client_of(folder)

    def blocks() -> Iterator[bytes]:
        yield bytes(PART_SIZE)
        yield bytes(PART_SIZE)
        raise RemoteStorageError("the local disk failed")

    with pytest.raises(RemoteStorageError):
        client.put("a/b.log", blocks())
    assert list(client.list_objects("")) == []
    assert not [path for path in folder.rglob("*") if path.is_file()], "no part is left behind"


def test_folder_object_is_synced_before_it_is_there_and_its_name_after(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        found = sorted(each.name for each in path.iterdir()) if path.is_dir() else "a file"
        synced.append(f"{path.relative_to(folder)}: {found}")

    monkeypatch.setattr(os, "fsync", fsync)
    client = client_of(folder)
    client.put("a/b/c.log", b"content")
    assert synced == [".: ['a']", "a: ['b']", "a/b/c.log#1: a file", "a/b: ['c.log']"]
    synced.clear()
    client.put("a/b/d.log", iter([b"con", b"tent"]))
    assert synced == ["a/b/d.log#1: a file", "a/b: ['c.log', 'd.log']"]
    client.copy("a/b/c.log", "a/e.log")
    assert synced[2:] == ["a/e.log#1: a file", "a: ['b', 'e.log']"]


def test_folder_that_vanished_is_a_failure_and_not_a_missing_object(folder: Path) -> None:
    """Otherwise an unmounted disk would look like deleted segments."""
    client = client_of(folder)
    folder.rmdir()
    with pytest.raises(RemoteStorageError):
        client.get_range("a/b.log", 0, 10)
    with pytest.raises(RemoteStorageError):
        client.delete("a/b.log")


def test_a_store_whose_root_cannot_be_listed_is_named() -> None:
    config = {"url": "s3://away/tier", "s3.endpoint.url": "http://127.0.0.1:1", "s3.region": "x"}
    keys = {"aws.access.key.id": "a", "aws.secret.access.key": "b"}
    settings = replace(ObjectStoreSettings.from_config(config | keys), retries=0)
    client = ObjectClient(settings, open_object_store(settings, create_folder=False))
    with pytest.raises(RemoteStorageError, match="folder cannot be listed url=s3://away/tier "):
        client.list_level("")


def test_folder_that_does_not_exist_is_refused_to_a_reader(folder: Path) -> None:
    settings = ObjectStoreSettings.from_config({"url": folder.as_uri()})
    with pytest.raises(ConfigError, match="there is no such folder url=file:"):
        open_object_store(settings, create_folder=False)
    assert not folder.exists()


def test_emptied_folders_disappear_and_the_root_stays(folder: Path) -> None:
    client = client_of(folder)
    client.put("a/b/c.log", b"content")
    client.delete("a/b/c.log")
    assert folder.exists()
    assert list(folder.iterdir()) == []


def test_folder_is_a_local_store(folder: Path) -> None:
    settings = ObjectStoreSettings.from_config({"url": folder.as_uri()})
    store = open_object_store(settings, create_folder=True)
    assert isinstance(store, LocalStore)
    assert Path(str(store.prefix)) == folder


@pytest.mark.parametrize("store", ["folder", "memory"])
def test_one_of_several_writers_creates_an_object(tmp_path: Path, store: str) -> None:
    if store == "folder":
        client = client_of(tmp_path)
    else:
        client = ObjectClient(ObjectStoreSettings(url="memory://"), MemoryStore())
    assert client.create("commits/7", b"first")
    assert not client.create("commits/7", b"second")
    assert client.get("commits/7", 100) == b"first"
    assert [each.key for each in client.list_objects("commits/")] == ["commits/7"]
    assert not list(tmp_path.rglob("*#*")), "nothing of the second is left"


@pytest.mark.parametrize("change", ["topic", "topic_id", "partition", "id", "start"])
def test_manifest_that_names_another_segment_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Its positions are those of other indexes."""
    setup = Setup(tmp_path, monkeypatch)
    segment = setup.copied()
    metadata = segment.metadata
    owner = metadata.topic_id_partition
    others = {
        "topic": owner._replace(topic="other"),
        "topic_id": owner._replace(topic_id=uuid.UUID(int=7)),
        "partition": owner._replace(partition=owner.partition + 1),
    }
    named = replace(metadata.segment_id, topic_id_partition=others.get(change, owner))
    if change == "id":
        named = replace(named, id=uuid.UUID(int=8))
    told = replace(metadata, segment_id=named)
    if change == "start":
        told = replace(told, start_offset=metadata.start_offset + 1)
    key = setup.manager._layout.manifest_key(metadata)
    assert key is not None
    manifest = read_manifest(bytes(obstore.get(setup.memory, key).bytes()))
    obstore.put(setup.memory, key, write_manifest(replace(manifest, segment=told)))
    for each in (metadata, replace(metadata, custom_metadata=b"")):
        # `rebuild` gives objects of an earlier topic id to a new one, by custom metadata.
        if change == "topic_id" and each.custom_metadata is not None:
            assert setup.manager.fetch_index(each, IndexType.OFFSET)
            continue
        with pytest.raises(CorruptMetadataError, match=f"another segment object={key}"):
            setup.manager.fetch_index(each, IndexType.OFFSET)
        setup.manager._manifests.forget(each)


IMPOSSIBLE_KEYS = [
    "../outside", "a/../../outside", "a/./b", "/outside", "a//b", "a\0b", "a\nb", "a\x7fb",
    "a" * 1025, "é" * 600,
]  # fmt: skip


@pytest.mark.parametrize("url", ["memory://", "folder"])
@pytest.mark.parametrize("key", IMPOSSIBLE_KEYS, ids=ascii)
def test_object_key_that_no_store_accepts_is_corrupt_metadata(
    tmp_path: Path, url: str, key: str
) -> None:
    """Nothing outside of the store's folder is read, written or deleted."""
    outside = tmp_path / "outside.log"
    outside.write_bytes(b"precious")
    segment = SegmentMaker(tmp_path / "segments").segment()
    place = (tmp_path / "bucket").as_uri() if url == "folder" else url
    manager = ObjectStoreRemoteStorageManager(ObjectStoreSettings.from_config({"url": place}))
    custom = AivenCustomMetadata(object_key=key).encode()
    metadata = replace(segment.metadata, custom_metadata=custom)
    buffer = memoryview(bytearray(8))
    attempts: list[Callable[[], object]] = [
        lambda: manager.fetch_log_segment(metadata, 0, 7),
        lambda: manager.fetch_log_segment_into(metadata, 0, buffer, lambda _: None),
        lambda: manager.fetch_index(metadata, IndexType.OFFSET),
        lambda: manager.copy_log_segment_data(metadata, segment.data),
        lambda: manager.delete_log_segment_data(metadata),
    ]
    for attempt in attempts:
        with pytest.raises(
            CorruptMetadataError, match="no store has an object of this key"
        ) as raised:
            attempt()
        assert len(str(raised.value)) < 800
    assert outside.read_bytes() == b"precious"


@pytest.mark.parametrize("key", ["file/below", "file/below/it", "n" * 250, "folder"])
def test_key_that_a_folder_cannot_have_is_an_object_that_does_not_exist(
    tmp_path: Path, key: str
) -> None:
    """A file stands where a folder would be, or a folder where the object would be."""
    (tmp_path / "bucket" / "folder.log").mkdir(parents=True)
    (tmp_path / "bucket" / "file").write_bytes(b"x")
    client = ObjectClient(
        settings := ObjectStoreSettings.from_config({"url": (tmp_path / "bucket").as_uri()}),
        open_object_store(settings, create_folder=False),
    )
    for attempt in (
        lambda: client.get(f"{key}.log", 10),
        lambda: client.object_size(f"{key}.log"),
        lambda: client.get_range(f"{key}.log", 0, 2),
    ):
        with pytest.raises(RemoteResourceNotFoundError):
            attempt()
    assert not client.exists(f"{key}.log")


@pytest.mark.parametrize("key", ["n" * 300, "a#1"])
def test_name_that_a_file_system_cannot_have_is_corrupt_metadata(tmp_path: Path, key: str) -> None:
    settings = ObjectStoreSettings.from_config({"url": tmp_path.as_uri()})
    client = ObjectClient(settings, open_object_store(settings, create_folder=False))
    with pytest.raises(CorruptMetadataError, match="no store"):
        client.get(key, 10)
