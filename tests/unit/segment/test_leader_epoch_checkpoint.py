"""The leader epoch checkpoint. The text is Kafka's."""

from __future__ import annotations

import pytest

from isotherm.errors import CorruptCheckpointError
from isotherm.segment.leader_epoch_checkpoint import (
    EpochEntry,
    encode_leader_epoch_checkpoint,
    read_leader_epoch_checkpoint,
)

GOLDEN = b"0\n2\n0 0\n1 4\n"
ENTRIES = [EpochEntry(0, 0), EpochEntry(1, 4)]


def test_checkpoint_written_is_kafkas_text() -> None:
    assert encode_leader_epoch_checkpoint(ENTRIES) == GOLDEN
    assert encode_leader_epoch_checkpoint([]) == b"0\n0\n"


def test_checkpoint_of_kafka_is_read_from_bytes_and_text() -> None:
    assert read_leader_epoch_checkpoint(GOLDEN) == ENTRIES
    assert read_leader_epoch_checkpoint(GOLDEN.decode()) == ENTRIES


@pytest.mark.parametrize("data", [b"", b"0", b"0\n", b"0\n0\n"])
def test_checkpoint_without_entries_is_empty(data: bytes) -> None:
    assert read_leader_epoch_checkpoint(data) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1\n0\n", "unknown version"),
        (b"zero\n", "line=1"),
        (b"0\nx\n", "line=2"),
        (b"0\n1\n0\n", "line=3"),
        (b"0\n1\n0 0 0\n", "line=3"),
        (b"0\n1\n0 a\n", "holds no integer"),
        (b"0\n2\n0 0\n", "count disagrees"),
        (b"0\n0\n0 0\n", "count disagrees"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_malformed_checkpoint_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=message):
        read_leader_epoch_checkpoint(data)
