"""The manifest of the Aiven layout. The examples follow its description, member by member."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptMetadataError, UnreadableDataError, UnsupportedVersionError
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.manifest.aiven_manifest import (
    INDEX_SIZE_MAX,
    KEY_TEXT_SIZE_MAX,
    SegmentEncryption,
    SegmentManifest,
    StoredIndex,
    read_manifest,
    write_manifest,
)
from isotherm.remote.storage.manifest.chunk_index import FixedChunkIndex, VariableChunkIndex
from isotherm.types import TopicIdPartition

SEGMENT = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(
        TopicIdPartition(uuid.UUID("0123456789abcdeffedcba9876543210"), "flights", 3),
        uuid.UUID("11111111222222223333333344444444"),
    ),
    start_offset=100,
    end_offset_inclusive=2**40,
    max_timestamp_ms=1_700_000_000_123,
    broker_id=1,
    event_timestamp_ms=1_700_000_001_000,
    segment_size_in_bytes=10_000,
    segment_leader_epochs={0: 100, 2: 150, 10: 2**33},
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    txn_index_empty=True,
)
INDEXES = {
    IndexType.OFFSET: StoredIndex(0, 16),
    IndexType.TIMESTAMP: StoredIndex(16, 24),
    IndexType.PRODUCER_SNAPSHOT: StoredIndex(40, 0),
    IndexType.LEADER_EPOCH: StoredIndex(40, 14),
}
PLAIN = SegmentManifest(FixedChunkIndex(4096, 10_000, 4096, 1808), INDEXES, segment=SEGMENT)
PLAIN_TEXT = (
    '{"version":"1",'
    '"chunkIndex":{"type":"fixed","originalChunkSize":4096,"originalFileSize":10000,'
    '"transformedChunkSize":4096,"finalTransformedChunkSize":1808},'
    '"segmentIndexes":{"offset":{"position":0,"size":16},'
    '"timestamp":{"position":16,"size":24},'
    '"producerSnapshot":{"position":40,"size":0},'
    '"leaderEpoch":{"position":40,"size":14},'
    '"transaction":null},'
    '"compression":false,'
    '"remoteLogSegmentMetadata":{"remoteLogSegmentId":{"topicIdPartition":'
    '{"topicId":"ASNFZ4mrze_-3LqYdlQyEA","topicPartition":{"topic":"flights","partition":3}},'
    '"id":"ERERESIiIiIzMzMzRERERA"},'
    '"startOffset":100,"endOffset":1099511627776,"maxTimestampMs":1700000000123,"brokerId":1,'
    '"eventTimestampMs":1700000001000,'
    '"segmentLeaderEpochs":{"0":100,"2":150,"10":8589934592}}}'
)


def changed(*path: str, value: object) -> bytes:
    """PLAIN_TEXT with one member replaced, or removed if the value is `...`."""
    members: dict[str, Any] = json.loads(PLAIN_TEXT)
    owner = members
    for name in path[:-1]:
        owner = owner[name]
    if value is ...:
        del owner[path[-1]]
    else:
        owner[path[-1]] = value
    return json.dumps(members).encode()


def test_plain_manifest_is_written_as_jackson_writes_it() -> None:
    assert write_manifest(PLAIN).decode() == PLAIN_TEXT


def test_plain_manifest_is_read() -> None:
    manifest = read_manifest(PLAIN_TEXT.encode())
    assert manifest == PLAIN
    assert manifest.is_plain


def test_transaction_index_is_written_and_read() -> None:
    indexes = {**INDEXES, IndexType.TRANSACTION: StoredIndex(54, 34)}
    text = write_manifest(SegmentManifest(PLAIN.chunk_index, indexes, segment=SEGMENT))
    assert b'"transaction":{"position":54,"size":34}' in text
    manifest = read_manifest(text)
    assert manifest.indexes == indexes
    assert manifest.segment is not None
    assert manifest.segment.txn_index_empty is False


def test_compressed_and_encrypted_manifest_round_trips() -> None:
    manifest = SegmentManifest(
        VariableChunkIndex(4096, 10_000, (700, 900, 33)),
        INDEXES,
        compression=True,
        encryption=SegmentEncryption("key1:AAAA", "AQID"),
        segment=SEGMENT,
    )
    text = write_manifest(manifest)
    assert b'"compression":true,"encryption":{"dataKey":"key1:AAAA","aad":"AQID"},' in text
    assert read_manifest(text) == manifest
    assert not read_manifest(text).is_plain


def test_unknown_members_and_another_order_are_read() -> None:
    members = dict(reversed(json.loads(write_manifest(PLAIN)).items()))
    members["added"] = {"by": ["a", "later", "plugin"]}
    members["chunkIndex"]["checksum"] = 17
    assert read_manifest(json.dumps(members, indent=2).encode()) == PLAIN


def test_manifest_without_segment_metadata_is_read() -> None:
    assert read_manifest(changed("remoteLogSegmentMetadata", value=...)).segment is None


def test_highest_leader_epoch_is_read() -> None:
    epochs = {str(2**31 - 1): 100}
    manifest = read_manifest(
        changed("remoteLogSegmentMetadata", "segmentLeaderEpochs", value=epochs)
    )
    assert manifest.segment is not None
    assert manifest.segment.segment_leader_epochs == {2**31 - 1: 100}


@pytest.mark.parametrize("epochs", [{"0": -1}, {"0": 100, "5": 2**40 + 1}, {"0": 150, "2": 100}])
def test_leader_epochs_outside_of_the_segment_are_corrupt(epochs: dict[str, int]) -> None:
    with pytest.raises(CorruptMetadataError, match="do not rise within"):
        read_manifest(changed("remoteLogSegmentMetadata", "segmentLeaderEpochs", value=epochs))


def test_numbers_at_the_limits_of_their_types_are_read() -> None:
    epochs = {"0": 0, "5": 2**40}
    path = ("remoteLogSegmentMetadata", "segmentLeaderEpochs")
    assert read_manifest(changed(*path, value=epochs)).segment is not None
    for number in (-(2**31), -1, 2**31 - 1):
        found = read_manifest(changed("remoteLogSegmentMetadata", "brokerId", value=number))
        assert found.segment is not None
        assert found.segment.broker_id == number


LONG = "x" * 10_000


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("segmentIndexes", "offset", "size"), INDEX_SIZE_MAX + 1),
        (("segmentIndexes", "offset", "size"), 2**31 - 1),
        (("chunkIndex", "originalChunkSize"), 2**30),
        (("chunkIndex", "transformedChunkSize"), 2**31 - 1),
        (("chunkIndex", "finalTransformedChunkSize"), 2**31 - 1),
        (("encryption",), {"dataKey": "a:" + "A" * KEY_TEXT_SIZE_MAX, "aad": "AAAA"}),
        (("encryption",), {"dataKey": "a:AAAA", "aad": "A" * (KEY_TEXT_SIZE_MAX + 1)}),
    ],
)
def test_size_that_would_take_memory_is_corrupt(path: tuple[str, ...], value: object) -> None:
    with pytest.raises(CorruptMetadataError, match="size"):
        read_manifest(changed(*path, value=value))


def test_largest_sizes_are_read() -> None:
    key = {"dataKey": "a:" + "A" * (KEY_TEXT_SIZE_MAX - 2), "aad": "A" * KEY_TEXT_SIZE_MAX}
    assert read_manifest(changed("encryption", value=key)).encryption is not None
    path = ("segmentIndexes", "offset", "size")
    manifest = read_manifest(changed(*path, value=INDEX_SIZE_MAX))
    assert manifest.indexes[IndexType.OFFSET].size == INDEX_SIZE_MAX


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), LONG),
        (("version",), "2\nERROR forged"),
        (("chunkIndex", "type"), LONG),
        (("remoteLogSegmentMetadata", "segmentLeaderEpochs"), {LONG: 100}),
        (
            ("remoteLogSegmentMetadata", "segmentLeaderEpochs"),
            {str(n): 900 - n for n in range(800)},
        ),
        (("compression",), LONG),
        (("encryption",), {"dataKey": "\u00e9" * 10_000, "aad": ""}),
    ],
)
def test_message_is_one_short_line_whatever_the_object_contains(
    path: tuple[str, ...], value: object
) -> None:
    with pytest.raises(UnreadableDataError) as raised:
        read_manifest(changed(*path, value=value))
    assert len(str(raised.value)) < 400
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("version", ["2", "", "1.0"])
def test_another_version_is_not_supported(version: str) -> None:
    with pytest.raises(UnsupportedVersionError, match="version="):
        read_manifest(changed("version", value=version))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"{" * 100_000,
        b"[" * 100_000,
        PLAIN_TEXT[:-1].encode(),
        changed("version", value=1),
        changed("version", value=...),
        changed("compression", value=...),
        changed("compression", value="false"),
        changed("compression", value=0),
        changed("encryption", value="yes"),
        changed("encryption", value={"dataKey": "a:b"}),
        changed("chunkIndex", value=None),
        changed("chunkIndex", "type", value="strange"),
        changed("chunkIndex", "originalChunkSize", value=0),
        changed("chunkIndex", "originalFileSize", value=2**31),
        changed("chunkIndex", "originalFileSize", value=True),
        changed("chunkIndex", "originalFileSize", value=1.5),
        changed("chunkIndex", "transformedChunkSize", value=-1),
        changed("segmentIndexes", "offset", value=None),
        changed("segmentIndexes", "offset", value=...),
        changed("segmentIndexes", "offset", "position", value=-1),
        changed("segmentIndexes", "leaderEpoch", "size", value="14"),
        changed("remoteLogSegmentMetadata", "startOffset", value=-1),
        changed("remoteLogSegmentMetadata", "endOffset", value=99),
        changed("remoteLogSegmentMetadata", "endOffset", value=2**63),
        changed("remoteLogSegmentMetadata", "segmentLeaderEpochs", value={}),
        changed("remoteLogSegmentMetadata", "segmentLeaderEpochs", value={"one": 1}),
        changed("remoteLogSegmentMetadata", "segmentLeaderEpochs", value={"-1": 1}),
        changed("remoteLogSegmentMetadata", "segmentLeaderEpochs", value={"٣": 1}),
        changed("remoteLogSegmentMetadata", "segmentLeaderEpochs", value={str(2**31): 1}),
        changed("remoteLogSegmentMetadata", "remoteLogSegmentId", "id", value="short"),
        changed("remoteLogSegmentMetadata", "brokerId", value=2**31),
        PLAIN_TEXT.replace('"flights"', '"\\ud800"').encode(),
    ],
)
def test_malformed_manifest_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptMetadataError):
        read_manifest(data)


def accepts_or_documents(data: bytes) -> None:
    try:
        manifest = read_manifest(data)
    except (CorruptMetadataError, UnsupportedVersionError):
        return
    assert read_manifest(write_manifest(manifest)) == manifest


@given(st.binary(max_size=200))
def test_any_bytes_give_a_manifest_or_a_documented_error(data: bytes) -> None:
    accepts_or_documents(data)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
MEMBER_PATHS = [
    ("chunkIndex",),
    ("chunkIndex", "type"),
    ("chunkIndex", "originalChunkSize"),
    ("chunkIndex", "originalFileSize"),
    ("segmentIndexes",),
    ("segmentIndexes", "transaction"),
    ("segmentIndexes", "timestamp"),
    ("segmentIndexes", "timestamp", "position"),
    ("encryption",),
    ("remoteLogSegmentMetadata",),
    ("remoteLogSegmentMetadata", "segmentLeaderEpochs"),
    ("remoteLogSegmentMetadata", "remoteLogSegmentId", "topicIdPartition"),
    ("remoteLogSegmentMetadata", "startOffset"),
]


@given(st.sampled_from(MEMBER_PATHS), JSON_VALUES)
def test_any_member_gives_a_manifest_or_a_documented_error(
    path: tuple[str, ...], value: object
) -> None:
    accepts_or_documents(changed(*path, value=value))
