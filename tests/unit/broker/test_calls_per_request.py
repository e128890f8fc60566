"""Python calls of a produce and a fetch request, from the frame to the bytes of the answer.

A count does not depend on the load of the machine, unlike a time. A loop of Python over records or
batches would exceed the bounds at once.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

import isotherm
from isotherm.broker.access.principal import ANONYMOUS
from isotherm.broker.dispatch.dispatch import Dispatcher
from isotherm.broker.net.connection import Connection, PendingAnswer
from isotherm.record.batch import build_batch

PRODUCE_CALLS_MAX = 77
FETCH_CALLS_MAX = 119
"""Calls of functions of this package; the counts are 77 and 116. Each
count has three of the simulated clock, whose place the system's own functions take in a broker."""

_PACKAGE = str(Path(isotherm.__file__).parent)
_WARM_UP = 3


class Client:
    client_address = "192.0.2.1"
    principal = ANONYMOUS
    listener_name = "PLAINTEXT"


def frame(api_key: int, api_version: int, body: bytes) -> bytes:
    return struct.pack(">hhih", api_key, api_version, 1, 1) + b"c" + body


def produce_frame(records: bytes) -> bytes:
    """Produce version 3: acks=1, one topic with one partition."""
    head = struct.pack(">hhiih1siii", -1, 1, 1000, 1, 1, b"t", 1, 0, len(records))
    return frame(0, 3, head + records)


def fetch_frame(offset: int) -> bytes:
    """Fetch version 4: no wait, one topic with one partition."""
    size = 1 << 30
    head = struct.pack(">iiiibih1siiqi", -1, 0, 1, size, 0, 1, 1, b"t", 1, 0, offset, size)
    return frame(1, 4, head)


class Broker:
    def __init__(self, parts: Any) -> None:
        self._parts = parts
        self._dispatcher = Dispatcher(parts.services)

    async def calls(self, request: bytes) -> int:
        """Answer a request, after some that may wait until the kernels are loaded."""
        for _ in range(_WARM_UP):
            answer = self._answer(request)
            if isinstance(answer, PendingAnswer):
                await answer.future
        count = 0

        def note(called: FrameType, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call" and called.f_code.co_filename.startswith(_PACKAGE)

        sys.setprofile(note)
        try:
            answer = self._answer(request)
        finally:
            sys.setprofile(None)
        assert not isinstance(answer, PendingAnswer)
        assert len(b"".join(answer)) > 8
        return count

    def _answer(self, request: bytes) -> Any:
        # A copy: an append writes offsets and CRC into the batch of the frame.
        received = memoryview(bytearray(request))
        return self._dispatcher.handle_frame(received, cast("Connection", Client()))

    def batch(self, records_count: int) -> bytes:
        now_ms = self._parts.clock.now_ms()
        return bytes(build_batch([(now_ms, b"k", b"v" * 100, ())] * records_count))


@pytest.mark.parametrize("records_count", [600, 6000])
def test_produce_request_of_any_size_takes_few_calls(parts: Any, records_count: int) -> None:
    async def scenario() -> None:
        broker = Broker(parts)
        assert await broker.calls(produce_frame(broker.batch(records_count))) <= PRODUCE_CALLS_MAX

    parts.run(scenario)


@pytest.mark.parametrize("batches_count", [1, 100])
def test_fetch_request_of_any_size_takes_few_calls(parts: Any, batches_count: int) -> None:
    async def scenario() -> None:
        broker = Broker(parts)
        for _ in range(batches_count):
            parts.append(*[b"b" * 100] * 10)
        assert await broker.calls(fetch_frame(0)) <= FETCH_CALLS_MAX

    parts.run(scenario)
