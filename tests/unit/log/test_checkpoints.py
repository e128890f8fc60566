"""Kafka's text files of a log directory: checkpoints, partition.metadata, meta.properties, the
clean-shutdown mark."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from isotherm.errors import CorruptCheckpointError
from isotherm.log.checkpoints import (
    MetaProperties,
    encode_offset_checkpoint,
    encode_partition_metadata,
    load_meta_properties,
    load_offset_checkpoint,
    load_partition_metadata,
    read_offset_checkpoint,
    read_partition_metadata,
    save_clean_shutdown,
    save_meta_properties,
    save_partition_metadata,
    take_clean_shutdown,
)
from isotherm.log.fs import OsFileSystem
from isotherm.types import TopicPartition, uuid_to_text
from tests.support.faulty_fs import FaultyFileSystem

FS = OsFileSystem()
TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def test_offset_checkpoint_is_kafkas_text() -> None:
    offsets = {TopicPartition("b", 0): 7, TopicPartition("a-1", 12): 2**40}
    data = encode_offset_checkpoint(offsets)
    assert data == b"0\n2\na-1 12 1099511627776\nb 0 7\n"
    assert read_offset_checkpoint(data) == offsets


@pytest.mark.parametrize("data", [b"0\n1\na 0\n", b"0\n1\na b 0\n", b"0\n2\na 0 1\n", b"3\n0\n"])
def test_malformed_offset_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        read_offset_checkpoint(data)


def test_absent_files_are_distinguished_from_damaged_ones(tmp_path: Path) -> None:
    assert load_offset_checkpoint(FS, tmp_path / "none") == {}
    assert load_partition_metadata(FS, tmp_path) is None
    assert load_meta_properties(FS, tmp_path) is None


def test_partition_metadata_has_no_newline_at_its_end(tmp_path: Path) -> None:
    data = encode_partition_metadata(TOPIC_ID)
    assert data == f"version: 0\ntopic_id: {uuid_to_text(TOPIC_ID)}".encode()
    assert len(data) == 43
    save_partition_metadata(FS, tmp_path, TOPIC_ID)
    assert load_partition_metadata(FS, tmp_path) == TOPIC_ID


@pytest.mark.parametrize("data", [b"", b"version: 1\ntopic_id: x", b"version: 0\ntopic_id: short"])
def test_malformed_partition_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        read_partition_metadata(data)


def test_meta_properties_are_read_back_and_from_kafkas_form(tmp_path: Path) -> None:
    properties = MetaProperties("4L6g3nShT-eMCtK--X86sw", 3, "YRrmhAoYQ6mgA8Pu8WpC2g")
    save_meta_properties(FS, tmp_path, properties)
    assert load_meta_properties(FS, tmp_path) == properties
    (tmp_path / "meta.properties").write_text(
        "#\n#Sun Nov 05 10:11:12 UTC 2023\ncluster.id=4L6g3nShT-eMCtK--X86sw\nversion=1\n"
        "directory.id=YRrmhAoYQ6mgA8Pu8WpC2g\nnode.id=3\n"
    )
    assert load_meta_properties(FS, tmp_path) == properties


def test_meta_properties_without_a_node_id_are_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("cluster.id=x\nversion=1\n")
    with pytest.raises(CorruptCheckpointError, match=r"meta\.properties"):
        load_meta_properties(FS, tmp_path)


def test_clean_shutdown_mark_is_taken_once(tmp_path: Path) -> None:
    assert take_clean_shutdown(FS, tmp_path) is None
    save_clean_shutdown(FS, tmp_path, 5)
    content = json.loads((tmp_path / ".kafka_cleanshutdown").read_text())
    assert content == {"version": 0, "brokerEpoch": 5}
    assert take_clean_shutdown(FS, tmp_path) == 5
    assert take_clean_shutdown(FS, tmp_path) is None


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"rubbish", b'{"version":0,"brokerEpoch":null}']
)
def test_clean_shutdown_mark_of_an_older_broker_has_no_epoch(tmp_path: Path, data: bytes) -> None:
    mark = tmp_path / ".kafka_cleanshutdown"
    mark.write_bytes(data)
    assert take_clean_shutdown(FS, tmp_path) == -1
    assert not mark.exists()


def test_clean_shutdown_mark_is_gone_for_good_before_the_logs_are_loaded(tmp_path: Path) -> None:
    """A crash after that must not find it."""
    fs = FaultyFileSystem()
    save_clean_shutdown(fs, tmp_path)
    synced = fs.sync_counts[tmp_path]
    assert take_clean_shutdown(fs, tmp_path) == -1
    assert fs.sync_counts[tmp_path] == synced + 1


def test_comments_and_lines_without_a_value_are_no_properties(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(
        "#node.id=9\ncluster.id = a=b \nnonsense\nnode.id=3\n"
    )
    assert load_meta_properties(FS, tmp_path) == MetaProperties("a=b", 3, None)
