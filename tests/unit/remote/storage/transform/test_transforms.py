"""Compressed and encrypted segments of the Aiven layout."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
import zstandard
from Crypto.PublicKey import RSA
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from isotherm.errors import ConfigError, CorruptObjectError
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage import object_client
from isotherm.remote.storage.manifest.aiven_manifest import SegmentManifest, read_manifest
from isotherm.remote.storage.manifest.chunk_index import VariableChunkIndex, stored_range
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.segment_sources import Source
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.storage.transform import encryption
from isotherm.remote.storage.transform.chunks import ChunkReader, ChunkStep, ChunkWriter
from isotherm.remote.storage.transform.compression import ZstdStep, starts_compressed
from isotherm.remote.storage.transform.encryption import AesGcmStep
from isotherm.testing.segment_files import MadeSegment, SegmentMaker

COMPRESSION = {"compression.enabled": "true"}
KEYS = ("public", "private")


@pytest.fixture(scope="module")
def key_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The PEM files of two key pairs, by key id and kind."""
    folder = tmp_path_factory.mktemp("keys")
    files: dict[str, dict[str, str]] = {}
    for key_id in ("first", "second"):
        private = RSA.generate(2048)
        pems = {"public": private.public_key().export_key(), "private": private.export_key(pkcs=8)}
        for kind, pem in pems.items():
            (folder / f"{key_id}.{kind}.pem").write_bytes(pem)
        files[key_id] = {kind: str(folder / f"{key_id}.{kind}.pem") for kind in pems}
    return files


def encryption_config(
    key_files: dict[str, dict[str, str]], active: str, *key_ids: str
) -> dict[str, str]:
    config = {
        "encryption.enabled": "true",
        "encryption.key.pair.id": active,
        "encryption.key.pairs": ",".join(key_ids or (active,)),
    }
    for key_id, kind in itertools.product(key_ids or (active,), KEYS):
        config[f"encryption.key.pairs.{key_id}.{kind}.key.file"] = key_files[key_id][kind]
    return config


class Setup:
    """A store in memory. Each manager over it has its own transforms."""

    def __init__(self, tmp_path: Path) -> None:
        self.maker = SegmentMaker(tmp_path / "segments")
        self.memory = MemoryStore()

    def manager(self, config: dict[str, str]) -> ObjectStoreRemoteStorageManager:
        settings = ObjectStoreSettings.from_config(
            {"url": "memory://", "chunk.size": "4096", **config}
        )
        return ObjectStoreRemoteStorageManager(settings, store=self.memory)

    def copied(self, config: dict[str, str], **options: Any) -> MadeSegment:
        segment = self.maker.segment(**options)
        self.manager(config).copy_log_segment_data(segment.metadata, segment.data)
        return segment

    def key(self, suffix: str) -> str:
        (key,) = (
            entry["path"]
            for batch in obstore.list(self.memory)
            for entry in batch
            if entry["path"].endswith(suffix)
        )
        return key

    def stored(self, suffix: str) -> bytes:
        return bytes(obstore.get(self.memory, self.key(suffix)).bytes())

    def flip_bit(self, suffix: str, position: int) -> None:
        content = bytearray(self.stored(suffix))
        content[position] ^= 0x10
        obstore.put(self.memory, self.key(suffix), bytes(content))

    def manifest(self) -> SegmentManifest:
        return read_manifest(self.stored(".rsm-manifest"))


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


# -- chunks


@given(
    content=st.binary(min_size=1, max_size=300),
    chunk_size=st.integers(1, 40),
    bounds=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    arriving=st.integers(1, 60),
    make_steps=st.sampled_from(
        [
            lambda: [ZstdStep()],
            lambda: [AesGcmStep(bytes(32), b"aad")],
            lambda: [ZstdStep(), AesGcmStep(bytes(32), b"aad")],
        ]
    ),
)
def test_any_range_is_restored_from_its_chunks_alone(
    content: bytes,
    chunk_size: int,
    bounds: tuple[int, int],
    arriving: int,
    make_steps: Callable[[], list[ChunkStep]],
) -> None:
    steps = make_steps()
    writer = ChunkWriter(Source(content, len(content)), chunk_size, steps)
    stored = b"".join(writer.chunks())
    index = writer.chunk_index()
    start, end = sorted(bound % (len(content) + 1) for bound in bounds)
    if start < end:
        buffer = memoryview(bytearray(end - start))
        reader = ChunkReader(index, start, buffer, steps)
        chunks = reader.stored_range
        reader.stored[:] = memoryview(stored)[chunks.start : chunks.end]
        for arrived in range(0, len(reader.stored) + 1, arriving):
            filled = reader.restore(arrived)
            assert buffer[:filled] == content[start : start + filled]
            # A chunk is complete as soon as its own last byte is there.
            whole = stored_range(index, 0, len(content))
            complete = sum(
                index.stored_position(chunk + 1) - chunks.start <= arrived
                for chunk in range(chunks.first_chunk, whole.chunk_end)
            )
            complete_end = (chunks.first_chunk + complete) * chunk_size
            assert filled == max(0, min(complete_end, end) - start)
        assert reader.restore(len(reader.stored)) == len(buffer)
        assert reader.is_done
        assert buffer == content[start:end]


def test_transformed_segment_is_given_chunk_by_chunk(
    tmp_path: Path, key_files: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first chunk is restored and reported before the second one has arrived."""
    monkeypatch.setattr(object_client, "_FILLED_SIZE", 1000)
    config = {"url": f"file://{tmp_path}/bucket", "chunk.size": "4096"}
    config |= encryption_config(key_files, "first")
    manager = ObjectStoreRemoteStorageManager(ObjectStoreSettings.from_config(config))
    segment = SegmentMaker(tmp_path / "segments").segment(size=40_000)
    manager.copy_log_segment_data(segment.metadata, segment.data)
    buffer, positions = memoryview(bytearray(30_000)), [0]

    def check(count: int) -> None:
        assert buffer[:count] == segment.log_bytes()[5_000 : 5_000 + count]
        assert not any(buffer[count:])
        positions.append(count)

    manager.fetch_log_segment_into(segment.metadata, 5_000, buffer, check)
    # The read begins 904 bytes into the chunk at 4096, so that chunk gives 3192 bytes.
    assert positions == [0, *range(3192, 30_000, 4096), 30_000]


def test_compressed_chunks_are_zstd_frames_with_their_size(setup: Setup) -> None:
    segment = setup.copied(COMPRESSION, size=10_000)
    index = setup.manifest().chunk_index
    assert isinstance(index, VariableChunkIndex)
    assert setup.manifest().compression
    stored, position, restored = setup.stored(".log"), 0, b""
    for size in index.transformed_sizes:
        frame = stored[position : position + size]
        assert zstandard.frame_content_size(frame) == len(zstandard.decompress(frame))
        restored += zstandard.decompress(frame)
        position += size
    assert restored == segment.log_bytes()


def test_encrypted_segment_has_a_fixed_index_and_shows_nothing(
    setup: Setup, key_files: dict[str, dict[str, str]]
) -> None:
    segment = setup.copied(encryption_config(key_files, "first"), size=10_000)
    index = setup.manifest().chunk_index
    assert setup.stored(".rsm-manifest").count(b'"type":"fixed"') == 1
    assert [index.stored_position(chunk) for chunk in range(4)] == [0, 4124, 8248, 10_084]
    assert segment.log_bytes()[:16] not in setup.stored(".log")
    offset_index = segment.index_bytes(IndexType.OFFSET)
    assert offset_index is not None
    assert offset_index not in setup.stored(".indexes")
    assert setup.manifest().indexes[IndexType.OFFSET].size == len(offset_index) + 28


def test_empty_index_is_stored_empty_under_encryption(
    setup: Setup, key_files: dict[str, dict[str, str]]
) -> None:
    config = encryption_config(key_files, "first")
    segment = setup.copied(config, index_entries=0)
    assert setup.manifest().indexes[IndexType.OFFSET].size == 0
    assert setup.manager(config).fetch_index(segment.metadata, IndexType.OFFSET) == b""


def test_two_copies_share_neither_key_nor_iv(
    setup: Setup, key_files: dict[str, dict[str, str]]
) -> None:
    config = encryption_config(key_files, "first")
    segment = setup.copied(config)
    first = (setup.manifest().encryption, setup.stored(".log"))
    setup.manager(config).copy_log_segment_data(segment.metadata, segment.data)
    second = (setup.manifest().encryption, setup.stored(".log"))
    assert first[0] != second[0]
    assert first[1][:12] != second[1][:12]
    ivs = {second[1][at : at + 12] for at in range(0, len(second[1]), 4124)}
    assert len(ivs) == 5


# -- reading


def test_reader_needs_no_compression_setting(setup: Setup) -> None:
    segment = setup.copied(COMPRESSION)
    found = setup.manager({}).fetch_log_segment(segment.metadata, 4_000, 9_000)
    assert found == segment.log_bytes()[4_000:9_001]


def test_plain_segment_is_read_where_new_ones_are_compressed(setup: Setup) -> None:
    segment = setup.copied({})
    assert setup.manager(COMPRESSION).fetch_log_segment(segment.metadata, 0) == segment.log_bytes()


def test_transformed_store_is_asked_for_the_manifest_first(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the very first read is wasted; afterwards the manager knows that it needs the
    manifest."""
    segments = [setup.copied(COMPRESSION) for _ in range(3)]
    manager = setup.manager({})
    requests: list[str] = []
    get = obstore.get

    def counted(store: Any, key: str, **options: Any) -> Any:
        requests.append(key.rpartition(".")[2])
        return get(store, key, **options)

    monkeypatch.setattr(obstore, "get", counted)
    for segment in segments:
        manager.fetch_log_segment(segment.metadata, 0, 9)
        manager.fetch_log_segment(segment.metadata, 9_000, 9_009)
    first, others = ["log", "rsm-manifest", "log", "log"], ["rsm-manifest", "log", "log"]
    assert requests == first + others + others


def test_old_key_pair_still_reads_after_a_new_one_became_active(
    setup: Setup, key_files: dict[str, dict[str, str]]
) -> None:
    segment = setup.copied(encryption_config(key_files, "first"))
    rotated = setup.manager(encryption_config(key_files, "second", "first", "second"))
    assert rotated.fetch_log_segment(segment.metadata, 0) == segment.log_bytes()


def test_data_key_is_unwrapped_once_for_all_ranges_and_indexes_of_a_segment(
    setup: Setup, key_files: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes milliseconds. Another copy, under another key, is read with its own."""
    unwrapped: list[bytes] = []

    class CountingCipher:
        def __init__(self, cipher: Any) -> None:
            self._cipher = cipher

        def encrypt(self, data_key: bytes) -> bytes:
            return bytes(self._cipher.encrypt(data_key))

        def decrypt(self, wrapped: bytes) -> bytes:
            unwrapped.append(wrapped)
            return bytes(self._cipher.decrypt(wrapped))

    key_cipher = encryption._key_cipher
    monkeypatch.setattr(encryption, "_key_cipher", lambda key: CountingCipher(key_cipher(key)))
    segment = setup.copied(encryption_config(key_files, "first"))
    log = segment.log_bytes()
    manager = setup.manager(encryption_config(key_files, "second", "first", "second"))
    for _ in range(2):
        for start in range(0, len(log), 4096):
            assert manager.fetch_log_segment(segment.metadata, start) == log[start:]
        for kind in (IndexType.OFFSET, IndexType.TIMESTAMP):
            manager.fetch_index(segment.metadata, kind)
    assert len(unwrapped) == 1
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert manager.fetch_log_segment(segment.metadata, 0) == log
    assert len(set(unwrapped)) == 2


@pytest.mark.parametrize("configured", [None, "second"])
def test_key_pair_that_is_not_at_hand_is_named(
    setup: Setup, key_files: dict[str, dict[str, str]], configured: str | None
) -> None:
    segment = setup.copied(encryption_config(key_files, "first"))
    config = {} if configured is None else encryption_config(key_files, configured)
    words = "no key pair is configured" if configured is None else "key_pair=first"
    for call in (
        lambda manager: manager.fetch_log_segment(segment.metadata, 0),
        lambda manager: manager.fetch_index(segment.metadata, IndexType.OFFSET),
    ):
        with pytest.raises(ConfigError, match=rf"{words}.*topic=flights"):
            call(setup.manager(config))


# -- damage


def test_damaged_compressed_chunk_is_corrupt_and_named(setup: Setup) -> None:
    segment = setup.copied(COMPRESSION, size=10_000)
    index = setup.manifest().chunk_index
    setup.flip_bit(".log", index.stored_position(1) + 1)
    manager = setup.manager(COMPRESSION)
    assert manager.fetch_log_segment(segment.metadata, 0, 4_095) == segment.log_bytes()[:4_096]
    with pytest.raises(CorruptObjectError, match=r"chunk=1 object=.*\.log.*topic=flights"):
        manager.fetch_log_segment(segment.metadata, 4_096, 4_097)


@pytest.mark.parametrize("position", [0, 12, 2_000, 4_123])
def test_damaged_encrypted_chunk_is_corrupt_and_named(
    setup: Setup, key_files: dict[str, dict[str, str]], position: int
) -> None:
    config = encryption_config(key_files, "first")
    segment = setup.copied(config)
    setup.flip_bit(".log", position)
    with pytest.raises(CorruptObjectError, match=r"chunk=0 object="):
        setup.manager(config).fetch_log_segment(segment.metadata, 0, 9)


@pytest.mark.slow
def test_damaged_encrypted_index_is_corrupt(
    setup: Setup, key_files: dict[str, dict[str, str]]
) -> None:
    config = encryption_config(key_files, "first")
    segment = setup.copied(config)
    setup.flip_bit(".indexes", 30)
    with pytest.raises(CorruptObjectError, match=r"authentication.*topic=flights"):
        setup.manager(config).fetch_index(segment.metadata, IndexType.OFFSET)


def test_chunk_that_unpacks_to_more_than_it_may_takes_no_memory() -> None:
    bomb = zstandard.compress(bytes(256 * 1024 * 1024))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptObjectError, match="expected=4096"):
            ZstdStep().undo(bomb, 4096)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=64))
def test_any_bytes_are_a_chunk_or_corrupt(data: bytes) -> None:
    for step in (ZstdStep(), AesGcmStep(bytes(32), b"aad")):
        try:
            step.undo(data, 64)
        except CorruptObjectError:
            continue


# -- what is compressed


@pytest.mark.parametrize(("codec", "compressed"), [(0, True), (1, False), (4, False)])
def test_heuristic_leaves_a_segment_that_producers_compressed(
    setup: Setup, codec: int, compressed: bool
) -> None:
    segment = setup.maker.segment()
    content = bytearray(segment.log_bytes())
    content[22] = codec
    segment.data.log_path.write_bytes(content)
    config = {**COMPRESSION, "compression.heuristic.enabled": "true"}
    setup.manager(config).copy_log_segment_data(segment.metadata, segment.data)
    assert setup.manifest().compression is compressed


def test_segment_shorter_than_a_batch_header_does_not_start_compressed() -> None:
    assert not starts_compressed(Source(b"\x01" * 60, 60))
    assert starts_compressed(Source(b"\x01" * 61, 61))


# -- settings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encryption.key.pair.id": "third"}, r"encryption\.key\.pair\.id value=third"),
        ({"encryption.key.pairs": ""}, "unknown configuration key"),
        ({"encryption.key.pairs.first.public.key.file": "/no/such"}, "file=/no/such"),
        ({"layout": "local-tiered-storage"}, "no encryption"),
    ],
)
def test_impossible_encryption_settings_are_refused(
    setup: Setup, key_files: dict[str, dict[str, str]], change: dict[str, str], words: str
) -> None:
    config = {**encryption_config(key_files, "first"), **change}
    with pytest.raises(ConfigError, match=words):
        setup.manager(config)


def test_key_file_that_is_not_set_is_named(
    setup: Setup, key_files: dict[str, dict[str, str]]
) -> None:
    config = encryption_config(key_files, "first")
    del config["encryption.key.pairs.first.private.key.file"]
    with pytest.raises(ConfigError, match=r"first\.private\.key\.file"):
        setup.manager(config)


def test_copy_repeated_with_another_setting_is_read_as_it_now_is(setup: Setup) -> None:
    segment = setup.copied(COMPRESSION)
    manager = setup.manager({})
    assert manager.fetch_log_segment(segment.metadata, 0) == segment.log_bytes()
    manager.copy_log_segment_data(segment.metadata, segment.data)
    assert manager.fetch_log_segment(replace(segment.metadata), 0) == segment.log_bytes()


def test_public_key_file_is_needed_to_write_only(
    setup: Setup, key_files: dict[str, dict[str, str]]
) -> None:
    writer = encryption_config(key_files, "first")
    private_only = {k: v for k, v in writer.items() if not k.endswith("public.key.file")}
    with pytest.raises(ConfigError, match=r"key=encryption\.key\.pairs\.first\.public\.key\.file"):
        setup.manager(private_only)
    segment = setup.copied(writer)
    reader = setup.manager({k: v for k, v in private_only.items() if k != "encryption.enabled"})
    assert reader.fetch_log_segment(segment.metadata, 0) == segment.log_bytes()
