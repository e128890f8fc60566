"""The file system that simulates power loss: synced data survives, all else by chance."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.crash_fs import CrashFileSystem, SimulatedCrash


def outcomes(fs: CrashFileSystem, source: Path, tmp_path: Path) -> list[dict[str, bytes]]:
    found = []
    for seed in range(60):
        target = tmp_path / f"clone-{seed}"
        fs.crash_clone(random.Random(seed), source, target)
        files = target.rglob("*")
        found.append({path.name: path.read_bytes() for path in files if path.is_file()})
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


def test_synced_content_with_a_synced_name_survives_always(source: Path, tmp_path: Path) -> None:
    fs = CrashFileSystem()
    file = fs.open_writable(source / "a")
    file.write_at(0, b"durable")
    file.sync()
    fs.sync_directory(source)
    assert all(found == {"a": b"durable"} for found in outcomes(fs, source, tmp_path))


def test_content_that_was_not_synced_survives_by_chance_and_in_part(
    source: Path, tmp_path: Path
) -> None:
    fs = CrashFileSystem()
    file = fs.open_writable(source / "a")
    fs.sync_directory(source)
    file.write_at(0, b"first.")
    file.write_at(6, b"second")
    found = {outcome["a"] for outcome in outcomes(fs, source, tmp_path)}
    assert {b"", b"first.", b"first.second", bytes(6) + b"second"} <= found
    assert len(found) > 4


def test_names_that_were_not_synced_survive_in_their_order(source: Path, tmp_path: Path) -> None:
    fs = CrashFileSystem()
    for name in ("a", "b"):
        fs.open_writable(source / name)
    fs.rename(source / "b", source / "c")
    fs.remove(source / "a")
    found = {tuple(sorted(outcome)) for outcome in outcomes(fs, source, tmp_path)}
    assert found == {(), ("a",), ("a", "b"), ("a", "c"), ("c",)}


def test_atomic_write_leaves_the_old_or_the_new_content(source: Path, tmp_path: Path) -> None:
    (source / "a").write_bytes(b"old")
    for operation in range(1, 8):
        fs = CrashFileSystem.adopting(source, crash_at=operation)
        try:
            fs.write_atomically(source / "a", b"new content")
        except SimulatedCrash:
            clones = tmp_path / str(operation)
            found = {outcome["a"] for outcome in outcomes(fs, source, clones)}
            assert found <= {b"old", b"new content"}
        else:
            assert operation == 7


def test_system_is_stopped_from_the_given_operation_on(source: Path) -> None:
    fs = CrashFileSystem(crash_at=3)
    file = fs.open_writable(source / "a")
    file.write_at(0, b"x")
    for _ in range(2):
        with pytest.raises(SimulatedCrash):
            file.sync()
    assert (source / "a").read_bytes() == b"x"
