"""The bound on decompressed batches: shares, turns, and what an error keeps."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import HEADER_SIZE, build_batch, read_batch_header
from isotherm.record.compression import CompressionType
from isotherm.record.decompression_memory import DecompressionMemory, decompression_size
from tests.support.conditions import wait_until


class Holders:
    """Threads that hold a share each until they are told to end."""

    def __init__(self, memory: DecompressionMemory, pool: ThreadPoolExecutor) -> None:
        self._memory = memory
        self._pool = pool
        self.begun: list[str] = []
        self._ends: dict[str, threading.Event] = {}
        self._futures: dict[str, Future[None]] = {}

    def begin(self, name: str, size: int) -> None:
        """Returns once the thread holds its share or waits for it."""
        number = len(self.begun) + self._memory.waiting
        self._ends[name] = threading.Event()
        self._futures[name] = self._pool.submit(self._hold, name, size)
        wait_until(lambda: len(self.begun) + self._memory.waiting > number)

    def _hold(self, name: str, size: int) -> None:
        with self._memory.hold(size):
            self.begun.append(name)
            assert self._ends[name].wait(300)

    def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            self._futures[name].result(300)


def test_shares_above_the_bound_wait_and_have_their_turns() -> None:
    memory = DecompressionMemory(100)
    with ThreadPoolExecutor(5) as pool:
        holders = Holders(memory, pool)
        holders.begin("a", 60)
        holders.begin("b", 10)
        holders.begin("large", 70)
        # It would fit beside the first two, but `large` came before it.
        holders.begin("small", 20)
        assert holders.begun == ["a", "b"]
        assert (memory.held, memory.waiting) == (70, 2)
        holders.end("a", "b")
        wait_until(lambda: len(holders.begun) == 4)
        assert (memory.held, memory.waiting) == (90, 0)
        holders.end("large", "small")
    assert (memory.held, memory.waiting) == (0, 0)


def test_a_share_larger_than_the_bound_is_alone() -> None:
    memory = DecompressionMemory(100)
    with ThreadPoolExecutor(3) as pool:
        holders = Holders(memory, pool)
        holders.begin("small", 1)
        holders.begin("larger", 300)
        assert holders.begun == ["small"]
        holders.end("small")
        wait_until(lambda: len(holders.begun) == 2)
        holders.begin("next", 1)
        assert holders.begun == ["small", "larger"]
        holders.end("larger")
        wait_until(lambda: len(holders.begun) == 3)
        holders.end("next")


def test_nothing_is_held_without_a_wait_for_others() -> None:
    memory = DecompressionMemory(100)
    with memory.hold(100), memory.hold(0):
        assert memory.held == 100


class _Records(bytearray):
    """Memory that a weak reference can watch."""


def test_error_that_is_kept_releases_its_share_and_the_records() -> None:
    memory = DecompressionMemory(100)
    references = []

    def fail() -> None:
        records = _Records(10)
        references.append(weakref.ref(records))
        raise CorruptRecordError("damaged")

    def hold() -> None:
        with memory.hold(60):
            fail()

    with pytest.raises(CorruptRecordError) as caught:
        hold()
    assert references[0]() is None
    assert caught.value.__traceback__ is not None
    assert (memory.held, memory.waiting) == (0, 0)


@pytest.mark.parametrize("codec", list(CompressionType))
def test_size_covers_what_a_decoder_has_at_once(codec: CompressionType) -> None:
    size = 3 << 20
    batch = build_batch([(0, None, bytes(size), ())], compression=codec)
    header, payload = read_batch_header(batch), memoryview(batch)[HEADER_SIZE:]
    if not codec:
        assert decompression_size(header, payload, 1 << 30) == 0
        return
    assert decompression_size(header, payload, 1 << 30) >= 2 * size
    # Above its limit a batch is refused.
    assert decompression_size(header, payload, 1 << 20) == 2 << 20
    assert decompression_size(header, payload, 1 << 20, copies=2) == 4 << 20


def test_size_of_an_unknown_codec_is_that_of_nothing() -> None:
    batch = build_batch([(0, None, b"x", ())], compression=CompressionType.GZIP)
    header = read_batch_header(batch)
    assert decompression_size(header._replace(attributes=7), memoryview(b"x"), 9) == 0
    assert decompression_size(header, memoryview(b""), 9) == 0
