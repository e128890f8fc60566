"""A map that is copied before its first change, so that images share unchanged maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Draft(Generic[K, V]):
    """The next version of `base`. `base` itself is never changed."""

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self._copy: dict[K, V] | None = None

    def __contains__(self, key: K) -> bool:
        return key in self._now

    def get(self, key: K) -> V | None:
        return self._now.get(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._now)

    def put(self, key: K, value: V) -> None:
        self._own()[key] = value

    def remove(self, key: K) -> V | None:
        """Remove a key and return its value, or None if there was none.

        Removing nothing makes no copy.
        """
        return self._own().pop(key, None) if key in self._now else None

    def finished(self) -> Mapping[K, V]:
        """The map: `base` itself if nothing was changed. The draft must not be used afterwards."""
        return self._base if self._copy is None else MappingProxyType(self._copy)

    @property
    def _now(self) -> Mapping[K, V]:
        return self._base if self._copy is None else self._copy

    def _own(self) -> dict[K, V]:
        if self._copy is None:
            self._copy = dict(self._base)
        return self._copy
