from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.log.file_cache import BoundedCache, FileCache
from isotherm.log.fs import OsFileSystem


class Loads:
    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, path: Path) -> bytes:
        self.paths.append(path.name)
        return path.name.encode()


def test_least_recently_used_value_is_evicted_first() -> None:
    cache: BoundedCache[bytes] = BoundedCache(2, lambda value: 1)
    load = Loads()
    for name in ("a", "b", "a", "c", "a", "b"):
        assert cache.get(Path(name), load) == name.encode()
    assert load.paths == ["a", "b", "c", "b"]
    assert len(cache) == 2


def test_weight_is_bounded_and_an_overweight_value_is_not_kept() -> None:
    cache: BoundedCache[bytes] = BoundedCache(10, len)
    load = Loads()
    for name in ("aaaa", "bbbb", "x" * 11):
        cache.get(Path(name), load)
    assert len(cache) == 0
    cache.get(Path("cccccc"), load)
    cache.get(Path("dddd"), load)
    assert len(cache) == 2


def test_discarded_value_is_loaded_again() -> None:
    cache: BoundedCache[bytes] = BoundedCache(10, len)
    load = Loads()
    cache.get(Path("a"), load)
    cache.discard(Path("a"))
    cache.discard(Path("never"))
    cache.get(Path("a"), load)
    assert load.paths == ["a", "a"]


def test_evicted_file_stays_readable_for_who_holds_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "b").write_bytes(b"second")
    cache = FileCache(OsFileSystem(), open_files_max=1)
    held = cache.file(tmp_path / "a")
    cache.file(tmp_path / "b")
    (tmp_path / "a").unlink()
    assert held.read_at(0, 100) == b"first"
    with pytest.raises(FileNotFoundError):
        cache.file(tmp_path / "a")


def test_index_bytes_are_kept_until_discarded(tmp_path: Path) -> None:
    path = tmp_path / "i"
    path.write_bytes(b"old")
    cache = FileCache(OsFileSystem())
    assert cache.index(path) == b"old"
    path.write_bytes(b"new")
    assert cache.index(path) == b"old"
    cache.discard([path])
    assert cache.index(path) == b"new"
