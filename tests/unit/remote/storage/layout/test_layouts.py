"""Object keys of both layouts."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from isotherm.remote.storage.layout.aiven import AivenLayout
from isotherm.remote.storage.layout.local_tiered_storage import LocalTieredStorageLayout
from isotherm.remote.storage.layout.segment_layout import Layout
from isotherm.remote.storage.manifest.aiven_manifest import read_manifest
from isotherm.remote.storage.segment_sources import Source, segment_sources
from isotherm.remote.storage.transform.segment_transforms import (
    SegmentTransforms,
    TransformSettings,
)
from isotherm.testing.segment_files import SegmentMaker
from isotherm.types import TopicIdPartition, uuid_from_text

METADATA = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(
        TopicIdPartition(uuid_from_text("jF8s79t9SrG_PNqlwv7bAA"), "t", 0),
        uuid_from_text("knnxbs3FSRyKdPcSAOQC-w"),
    ),
    start_offset=0,
    end_offset_inclusive=9,
    max_timestamp_ms=1,
    broker_id=1,
    event_timestamp_ms=1,
    segment_size_in_bytes=10,
    segment_leader_epochs={0: 0},
)
TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True)
PREFIXES = st.sampled_from(["", "folder/", "folder/sub/", "name-", "folder/name-", "a-b/c.d"])


def aiven(prefix: str) -> AivenLayout:
    return AivenLayout(prefix, 4096, SegmentTransforms(TransformSettings(), None))


def both_layouts(prefix: str) -> list[Layout]:
    return [aiven(prefix), LocalTieredStorageLayout(prefix)]


def test_aiven_keys() -> None:
    stem = "tier/t-jF8s79t9SrG_PNqlwv7bAA/0/00000000000000000000-knnxbs3FSRyKdPcSAOQC-w"
    assert aiven("tier/").object_keys(METADATA) == (
        f"{stem}.log",
        f"{stem}.indexes",
        f"{stem}.rsm-manifest",
    )


def test_local_tiered_storage_keys() -> None:
    stem = "t-0-jF8s79t9SrG_PNqlwv7bAA/00000000000000000000-knnxbs3FSRyKdPcSAOQC-w"
    assert LocalTieredStorageLayout("").object_keys(METADATA) == (
        f"{stem}.log",
        f"{stem}.index",
        f"{stem}.timeindex",
        f"{stem}.txnindex",
        f"{stem}.leader_epoch_checkpoint",
        f"{stem}.snapshot",
    )


@given(
    topic=TOPICS,
    topic_id=st.uuids(),
    partition=st.integers(0, 2**31 - 1),
    start_offset=st.integers(0, 2**63 - 1),
    segment_uuid=st.uuids(),
    prefix=PREFIXES,
)
def test_keys_parse_back(
    topic: str,
    topic_id: uuid.UUID,
    partition: int,
    start_offset: int,
    segment_uuid: uuid.UUID,
    prefix: str,
) -> None:
    segment_id = RemoteLogSegmentId(TopicIdPartition(topic_id, topic, partition), segment_uuid)
    metadata = replace(
        METADATA,
        segment_id=segment_id,
        start_offset=start_offset,
        end_offset_inclusive=start_offset,
        segment_leader_epochs={0: start_offset},
    )
    for layout in both_layouts(prefix):
        for key in layout.object_keys(metadata):
            parsed = layout.parse_key(key)
            assert parsed is not None, key
            assert (parsed.segment_id, parsed.start_offset) == (segment_id, start_offset)
            assert key.endswith("." + parsed.suffix)
            directory = key.removeprefix(layout.root_directory).split("/")[0]
            assert layout.directory_topic(layout.root_directory + directory) == topic


@given(st.text(max_size=120), PREFIXES)
def test_any_text_parses_or_is_foreign(text: str, prefix: str) -> None:
    for layout in both_layouts(prefix):
        layout.directory_topic(text)
        parsed = layout.parse_key(text)
        assert parsed is None or text.endswith(parsed.suffix)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "t-jF8s79t9SrG_PNqlwv7bAA/0/00000000000000000000-knnxbs3FSRyKdPcSAOQC-w",
        "t-jF8s79t9SrG_PNqlwv7bAA/0/00000000000000000000-knnxbs3FSRyKdPcSAOQC-w.",
        "t-jF8s79t9SrG_PNqlwv7bAA/0/0000000000000000000-knnxbs3FSRyKdPcSAOQC-w.log",
        "t-jF8s79t9SrG_PNqlwv7bAA/0/99999999999999999999-knnxbs3FSRyKdPcSAOQC-w.log",
        "t-jF8s79t9SrG_PNqlwv7bAA/00/00000000000000000000-knnxbs3FSRyKdPcSAOQC-w.log",
        "t-jF8s79t9SrG_PNqlwv7bAA/x/00000000000000000000-knnxbs3FSRyKdPcSAOQC-w.log",
        "jF8s79t9SrG_PNqlwv7bAA/0/00000000000000000000-knnxbs3FSRyKdPcSAOQC-w.log",
        "-jF8s79t9SrG_PNqlwv7bAA/0/00000000000000000000-knnxbs3FSRyKdPcSAOQC-w.log",
        "t-jF8s79t9SrG_PNqlwv7bAB/0/00000000000000000000-knnxbs3FSRyKdPcSAOQC-w.log",
        "x/t-jF8s79t9SrG_PNqlwv7bAA/0/00000000000000000000-knnxbs3FSRyKdPcSAOQC-w.log",
    ],
)
def test_foreign_keys_are_none_of_aivens(key: str) -> None:
    """One key has an id whose last character encodes bits that a 128-bit id does not have."""
    assert aiven("").parse_key(key) is None


def test_aiven_manifest_locates_every_index(tmp_path: Path) -> None:
    segment = SegmentMaker(tmp_path).segment(with_transaction_index=True)
    layout = aiven("")
    uploads = list(layout.uploads(segment.metadata, segment_sources(segment.data)))
    indexes = b"".join(uploads[1].content)
    manifest = read_manifest(uploads[2].content)
    for kind in IndexType:
        location = layout.index_location(segment.metadata, kind, manifest)
        assert location is not None
        found = indexes[location.position : location.position + (location.size or 0)]
        assert found == segment.index_bytes(kind)
    order = sorted(manifest.indexes, key=lambda kind: manifest.indexes[kind].position)
    assert [kind.name for kind in order] == [
        "OFFSET",
        "TIMESTAMP",
        "PRODUCER_SNAPSHOT",
        "LEADER_EPOCH",
        "TRANSACTION",
    ]


def test_local_tiered_storage_writes_no_empty_leader_epochs(tmp_path: Path) -> None:
    segment = SegmentMaker(tmp_path).segment()
    data = replace(segment.data, leader_epoch_checkpoint=b"")
    uploads = LocalTieredStorageLayout("").uploads(segment.metadata, segment_sources(data))
    suffixes = [upload.key.rpartition(".")[2] for upload in uploads]
    assert suffixes == ["log", "index", "timeindex", "snapshot"]


@given(st.binary(max_size=100), st.integers(1, 30))
def test_source_blocks_add_up(content: bytes, block_size: int) -> None:
    blocks = list(Source(content, len(content)).blocks(block_size))
    assert b"".join(blocks) == content
    assert all(len(block) == block_size for block in blocks[:-1])
