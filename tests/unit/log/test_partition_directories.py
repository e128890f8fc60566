"""What a start does with the directories that it finds: only the log of a deleted topic is
deleted."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.errors import CorruptMetadataError
from isotherm.log.checkpoints import load_partition_metadata, save_partition_metadata
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_copy import MOVED_MARK
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.partition_directories import (
    IdentifiedDirectories,
    find_directories,
    identify,
    missing_directories,
    replaced_by_moves,
)
from isotherm.types import TopicPartition

FS = OsFileSystem()
A = TopicPartition("a", 0)
THIS, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


@dataclass
class Catalog:
    """`current` is the id of topic a now, `removed` those of deleted topics."""

    current: uuid.UUID | None = THIS
    removed: frozenset[uuid.UUID] = frozenset()
    elsewhere: bool = False

    def topic_id(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        assert topic_partition == A
        return self.current

    def was_removed(self, topic_id: uuid.UUID) -> bool:
        return topic_id in self.removed

    def is_elsewhere(self, topic_partition: TopicPartition) -> bool:
        return self.elsewhere


def directory(log_dir: Path, topic_id: uuid.UUID | bytes | None) -> PartitionDirectory:
    """A directory of partition a-0 with this id; bytes are those of a damaged file."""
    path = log_dir / "a-0"
    path.mkdir(parents=True)
    (path / f"{0:020d}.log").write_bytes(b"x")
    if isinstance(topic_id, bytes):
        (path / "partition.metadata").write_bytes(topic_id)
    elif topic_id is not None:
        save_partition_metadata(FS, path, topic_id)
    return PartitionDirectory(LogDir(log_dir), path, A)


def fates(found: IdentifiedDirectories) -> dict[str, int]:
    return {name: len(each) for name, each in found._asdict().items() if each}


@pytest.mark.parametrize(
    ("topic_id", "catalog", "expected"),
    [
        (THIS, Catalog(), "loaded"),
        (THIS, Catalog(elsewhere=True), "stray"),
        (None, Catalog(), "loaded"),
        (b"rubbish", Catalog(), "loaded"),
        (OTHER, Catalog(removed=frozenset({OTHER})), "deleted"),
        (OTHER, Catalog(None, removed=frozenset({OTHER})), "deleted"),
        (OTHER, Catalog(), "offline"),
        (OTHER, Catalog(removed=frozenset({THIS})), "offline"),
        (None, Catalog(None), None),
        (b"rubbish", Catalog(None, removed=frozenset({OTHER})), None),
        (OTHER, None, "loaded"),
        (None, None, "loaded"),
    ],
)
def test_fate_of_a_directory_is_that_of_its_topic(
    tmp_path: Path,
    topic_id: uuid.UUID | bytes | None,
    catalog: Catalog | None,
    expected: str | None,
) -> None:
    each = directory(tmp_path / "one", topic_id)
    found = identify(FS, [each], catalog)
    assert fates(found) == ({expected: 1} if expected else {})
    assert (each.path / f"{0:020d}.log").exists()
    if expected == "loaded" and catalog is not None:
        assert found.loaded == [(each, THIS)]
        assert load_partition_metadata(FS, each.path) == THIS


def test_log_of_a_topic_that_the_cluster_never_had_stops_the_start(tmp_path: Path) -> None:
    each = directory(tmp_path / "one", OTHER)
    with pytest.raises(CorruptMetadataError, match="it has lost records"):
        identify(FS, [each], Catalog(None))


@pytest.mark.parametrize("lost", [None, b"rubbish"])
def test_lost_id_is_not_guessed_for_one_of_two_directories(
    tmp_path: Path, lost: bytes | None
) -> None:
    both = [directory(tmp_path / "one", lost), directory(tmp_path / "two", THIS)]
    found = identify(FS, both, Catalog())
    assert found.loaded == [(both[1], THIS)]
    (offline,) = found.offline
    assert offline.directory == both[0].path


@pytest.mark.parametrize(
    ("marks", "ids", "replaced"),
    [
        ({}, (THIS, THIS), []),
        ({0: ["two"]}, (THIS, THIS), [1]),
        ({1: ["one"]}, (THIS, THIS), [0]),
        ({1: ["three", "one"]}, (THIS, THIS), [0]),
        ({1: ["three"]}, (THIS, THIS), []),
        ({0: ["two"], 1: ["one"]}, (THIS, THIS), []),
        # The topic was deleted and created again while the disk with the mark was away.
        ({1: ["one"]}, (THIS, OTHER), []),
        ({1: ["one"]}, (None, THIS), []),
        ({1: ["one"]}, (b"rubbish", THIS), []),
    ],
)
def test_directory_that_a_move_has_replaced_is_known_by_the_mark_of_the_other(
    tmp_path: Path,
    marks: dict[int, list[str]],
    ids: tuple[uuid.UUID | bytes | None, ...],
    replaced: list[int],
) -> None:
    both = [
        directory(tmp_path / name, topic_id)
        for name, topic_id in zip(("one", "two"), ids, strict=True)
    ]
    for number, named in marks.items():
        lines = "\n".join(str(tmp_path / name) for name in named)
        (both[number].path / MOVED_MARK).write_text(lines)
    assert replaced_by_moves(FS, both) == [both[number] for number in replaced]
    assert replaced_by_moves(FS, both[:1]) == []


@pytest.mark.parametrize(
    ("recovery_point", "catalog", "found", "is_missing"),
    [
        (1, Catalog(), set(), True),
        (0, Catalog(), set(), False),
        (1, Catalog(), {A}, False),
        (1, Catalog(None), set(), False),
        (1, Catalog(elsewhere=True), set(), False),
        (1, None, set(), False),
    ],
)
def test_partition_that_had_records_on_disk_is_missed(
    tmp_path: Path,
    recovery_point: int,
    catalog: Catalog | None,
    found: set[TopicPartition],
    is_missing: bool,
) -> None:
    locked: Any = SimpleNamespace(log_dir=LogDir(tmp_path), recovery_points={A: recovery_point})
    missed = missing_directories([locked], found, catalog)
    assert [each.directory for each in missed] == [tmp_path / "a-0"] * is_missing


def test_directories_are_sorted_by_their_names(tmp_path: Path) -> None:
    mark = "0123456789abcdef0123456789abcdef"
    names = ["a-0", f"b-1.{mark}-delete", f"c-2.{mark}-future", f"d-3.{mark}-stray"]
    for name in (*names, "__cluster_metadata-0", "lost+found"):
        (tmp_path / name).mkdir()
    found = find_directories(FS, LogDir(tmp_path))
    assert [partition.path.name for partition in found.partitions] == names[:1]
    assert [each.path.name for each in found.marked] == names[1:2]
    assert [(copy.path.name, copy.topic_partition) for copy in found.copies] == [
        (names[2], TopicPartition("c", 2))
    ]
