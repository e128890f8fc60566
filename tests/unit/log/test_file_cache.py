"""The bounded cache of open files and index bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.log.file_cache import BoundedCache, FileCache
from isotherm.log.fs import OsFileSystem


class Loads:
    """A cache whose values are the bytes of their names. `names` are those loaded, in order."""

    def __init__(self, cache: BoundedCache[bytes]) -> None:
        self._cache = cache
        self.names: list[str] = []

    def get(self, name: str) -> bytes:
        return self._cache.get(name, lambda: self._load(name))

    def _load(self, name: str) -> bytes:
        self.names.append(name)
        return name.encode()


def test_least_recently_used_value_is_evicted_first() -> None:
    cache: BoundedCache[bytes] = BoundedCache(2, lambda value: 1)
    loads = Loads(cache)
    for name in ("a", "b", "a", "c", "a", "b"):
        assert loads.get(name) == name.encode()
    assert loads.names == ["a", "b", "c", "b"]
    assert len(cache) == 2


def test_weight_is_bounded_and_an_overweight_value_is_not_kept() -> None:
    cache: BoundedCache[bytes] = BoundedCache(10, len)
    loads = Loads(cache)
    for name in ("aaaa", "bbbb", "x" * 11):
        loads.get(name)
    assert len(cache) == 0
    loads.get("cccccc")
    loads.get("dddd")
    assert len(cache) == 2


def test_discarded_value_is_loaded_again() -> None:
    cache: BoundedCache[bytes] = BoundedCache(10, len)
    loads = Loads(cache)
    loads.get("a")
    cache.discard(["a", "never"])
    loads.get("a")
    assert loads.names == ["a", "a"]


def test_evicted_file_stays_readable_for_its_holders(tmp_path: Path) -> None:
    fs = OsFileSystem()
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    cache = FileCache(fs, open_files_max=1)
    held = cache.file("a", lambda: fs.open_readable(tmp_path / "a"))
    cache.file("b", lambda: fs.open_readable(tmp_path / "b"))
    (tmp_path / "a").unlink()
    assert held.read_at(0, 100) == b"a"
    with pytest.raises(FileNotFoundError):
        cache.file("a", lambda: fs.open_readable(tmp_path / "a"))


def test_index_bytes_are_kept_until_discarded() -> None:
    cache = FileCache(OsFileSystem())
    assert cache.index("i", lambda: b"old") == b"old"
    assert cache.index("i", lambda: b"new") == b"old"
    cache.discard(["i"])
    assert cache.index("i", lambda: b"new") == b"new"
