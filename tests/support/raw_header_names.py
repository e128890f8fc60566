"""Names of record headers that are any bytes.

Our writer of batches takes texts, as every client does.
"""

from __future__ import annotations

from typing import Self


class RawName(str):
    """A header's name that is written as the bytes `raw`."""

    __slots__ = ("raw",)
    raw: bytes

    def __new__(cls, raw: bytes) -> Self:
        made = super().__new__(cls, raw.decode("latin-1"))
        made.raw = raw
        return made

    def encode(self, *_: object, **__: object) -> bytes:
        return self.raw
