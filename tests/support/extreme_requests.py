"""Requests with values at the ends of their ranges, and a supply of frames that is fast to draw
from.
"""

from __future__ import annotations

import contextlib
import random
import struct
import typing
import uuid
from typing import Any

from kio.static.primitive import Records

from isotherm.record.batch import build_batch
from isotherm.record.compression import CompressionType
from tests.support.request_maker import REQUESTS, TOPIC, RequestMaker

# A frame is not sent if it is larger: the search is for what a few bytes do.
FRAME_SIZE_MAX = 2 * 1024 * 1024

# Of all arrays of a frame together.
ELEMENTS_MAX = 10_000
COUNTS = (0, 1, 1, 2, 3, 50, 1000, 9000)
TEXTS = (
    TOPIC,
    "",
    "group",
    "1",
    "a" * 249,
    "b" * 32_000,
    "(a+)+$",
    ".*",
    "x{1,1000}{1,1000}",
    "\0\n\x1b[2J",
    "__consumer_offsets",
)
NUMBERS = (
    -(2**63),
    -(2**31),
    -(2**15),
    -128,
    -2,
    -1,
    0,
    1,
    2,
    127,
    2**15 - 1,
    2**31 - 1,
    2**63 - 1,
)


class ExtremeRequestMaker(RequestMaker):
    """Random requests with values at the ends of their ranges, and long arrays of one item."""

    def __init__(self, rng: random.Random, topic_id: uuid.UUID) -> None:
        super().__init__(rng, topic_id)
        self._records = _extreme_batches()
        self._left = 0

    def frame(self, api_key: int, version: int) -> bytes:
        self._left = ELEMENTS_MAX
        return super().frame(api_key, version)

    def _value(self, annotation: Any) -> Any:
        if typing.get_origin(annotation) is tuple:
            item = typing.get_args(annotation)[0]
            count = min(self._rng.choice(COUNTS), self._left)
            # What is inside is there as many times.
            self._left //= max(1, count)
            if self._rng.random() < 0.5:
                return tuple(self._value(item) for _ in range(min(count, 20)))
            return (self._value(item),) * count if count else ()
        return super()._value(annotation)

    def _leaf(self, annotation: Any) -> Any:
        rng = self._rng
        # Long values and long arrays, not both: a frame has FRAME_SIZE_MAX.
        if self._left < ELEMENTS_MAX // 100:
            return super()._leaf(annotation)
        if annotation is Records:
            return rng.choice(self._records)
        if isinstance(annotation, type) and issubclass(annotation, str):
            with contextlib.suppress(TypeError, ValueError):
                return annotation(rng.choice(TEXTS))
        if isinstance(annotation, type) and issubclass(annotation, bytes):
            return rng.choice((b"", bytes(100), bytes(60_000), rng.randbytes(500)))
        return super()._leaf(annotation)

    def _number(self, annotation: Any) -> Any:
        for number in self._rng.sample(NUMBERS, len(NUMBERS)):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                return annotation(number)
        return super()._number(annotation)


def _extreme_batches() -> list[bytes]:
    """Batches that are small as they are sent, and large, or many records, when they are
    decompressed.
    """
    batches = [bytes(build_batch([(1_700_000_000_000, b"k", b"v", ())]))]
    for codec in CompressionType:
        for size in (100_000, 900_000, 30_000_000):
            records = [(1_700_000_000_000, None, bytes(size), ())]
            if codec or size < 1_000_000:
                batches.append(bytes(build_batch(records, compression=codec)))
        many = [(1_700_000_000_000, None, None, ())] * 20_000
        batches.append(bytes(build_batch(many, compression=codec)))
    return [batch for batch in batches if len(batch) < FRAME_SIZE_MAX]


class FrameSupply:
    """Frames of all APIs and versions: as real clients send them, random, and extreme ones.

    Making a frame takes from 0.1 to 100 ms, drawing one some microseconds. So the frames are made
    once, and `renew` replaces some extreme ones.
    """

    def __init__(self, rng: random.Random, topic_id: uuid.UUID, extremes: int) -> None:
        self._rng = rng
        self._extreme_maker = ExtremeRequestMaker(rng, topic_id)
        self._maker = maker = RequestMaker(rng, topic_id)
        self._frames = [maker.frame(key, version) for key, version in REQUESTS]
        for key, version in REQUESTS:
            self._frames += maker.recorded_frames(key, version)
        self._extremes = [self._extreme() for _ in range(extremes)]

    def renew(self, count: int) -> None:
        for _ in range(count):
            self._extremes[self._rng.randrange(len(self._extremes))] = self._extreme()

    def draw(self, kinds: list[bytes], *, damaged: float) -> bytes:
        """One of `kinds`; with the probability `damaged` a damaged copy."""
        frame = self._rng.choice(kinds)
        if self._rng.random() < damaged and len(frame) > 8:
            return self._maker.mutant(frame)
        return frame

    def kinds(self, count: int, extremes: int) -> list[bytes]:
        """So many frames, and so many extreme ones."""
        return self._rng.choices(self._frames, k=count) + self._rng.choices(
            self._extremes, k=extremes
        )

    def _extreme(self) -> bytes:
        key, version = self._rng.choice(REQUESTS)
        try:
            frame = self._extreme_maker.frame(key, version)
        except (ValueError, OverflowError, struct.error):
            # A value has no form in this version, such as a text above 32 KiB.
            return self._rng.randbytes(100)
        return frame if len(frame) <= FRAME_SIZE_MAX else frame[:1000]
