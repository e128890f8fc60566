"""Names of segment files and partition directories. The forms are Kafka's."""

from __future__ import annotations

import uuid

import pytest

from isotherm.segment.file_names import (
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    PartitionDirectoryState,
    live_partition,
    parse_partition_directory,
    parse_segment_file_name,
    partition_directory_name,
    retired_partition_directory_name,
    segment_file_name,
)
from isotherm.types import TopicPartition

ID = uuid.UUID("0123456789abcdef0123456789abcdef")


def test_segment_file_name_is_twenty_digits_and_suffix() -> None:
    assert segment_file_name(42, LOG_SUFFIX) == "00000000000000000042.log"
    assert segment_file_name(42, LOG_SUFFIX, SWAP_SUFFIX) == "00000000000000000042.log.swap"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000042.log", (42, LOG_SUFFIX, "")),
        ("00000000000000000042.snapshot", (42, PRODUCER_SNAPSHOT_SUFFIX, "")),
        ("00000000000000000042.log.swap", (42, LOG_SUFFIX, ".swap")),
        ("00000000000000000042.timeindex.deleted", (42, ".timeindex", ".deleted")),
        ("42.log", None),
        ("leader-epoch-checkpoint", None),
        ("00000000000000000042.checkpoint.deleted", None),
    ],
)
def test_segment_file_name_is_parsed(name: str, expected: tuple[int, str, str] | None) -> None:
    assert parse_segment_file_name(name) == expected


@pytest.mark.parametrize(
    ("name", "topic", "partition", "state"),
    [
        ("flights-0", "flights", 0, ""),
        ("a-b-12", "a-b", 12, ""),
        ("a.b-1", "a.b", 1, ""),
        (f"flights-0.{ID.hex}-delete", "flights", 0, "delete"),
        (f"flights-0.{ID.hex}-stray", "flights", 0, "stray"),
        (f"flights-0.{ID.hex}-future", "flights", 0, "future"),
    ],
)
def test_partition_directory_is_parsed(name: str, topic: str, partition: int, state: str) -> None:
    parsed = parse_partition_directory(name)
    assert parsed == (TopicPartition(topic, partition), PartitionDirectoryState(state))


@pytest.mark.parametrize(
    "name", ["flights", "-0", "flights-", "flights-x", "remote-log-index-cache"]
)
def test_other_directories_are_no_partitions(name: str) -> None:
    assert parse_partition_directory(name) is None


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("flights-7", 7),
        ("flights-7-8", None),
        ("other-7", None),
        (f"flights-7.{ID.hex}-delete", None),
        (f"flights-7.{ID.hex}-future", None),
        ("remote-log-index-cache", None),
    ],
)
def test_live_partition_is_that_of_the_topic_itself(name: str, partition: int | None) -> None:
    assert live_partition(name, "flights") == partition


def test_retired_directory_name_of_a_long_topic_is_cut_to_255_characters() -> None:
    partition = TopicPartition("t" * 249, 7)
    name = retired_partition_directory_name(partition, ID, PartitionDirectoryState.DELETED)
    assert len(name) == 255
    assert name.endswith(f"-7.{ID.hex}-delete")
    parsed = parse_partition_directory(name)
    assert parsed is not None
    assert parsed.state is PartitionDirectoryState.DELETED


def test_partition_directory_name_is_topic_dash_partition() -> None:
    assert partition_directory_name(TopicPartition("a-b", 3)) == "a-b-3"
