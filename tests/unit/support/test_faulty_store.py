"""The storage manager that injects faults: each fault does what its name says, and the trace
records it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from isotherm.errors import (
    CorruptObjectError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageThrottledError,
)
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.segment_files import MadeSegment, SegmentMaker
from isotherm.testing.sim_clock import SimClock
from tests.support.faulty_store import Call, Fault, FaultyStore, Operation


class Setup:
    """A faulty store over a real one in memory, and a segment to copy."""

    def __init__(self, tmp_path: Path, seed: int = 0) -> None:
        settings = ObjectStoreSettings.from_config({"url": "memory://"})
        self.real = ObjectStoreRemoteStorageManager(settings, store=MemoryStore())
        self.clock = SimClock(auto_advance=True)
        self.store = FaultyStore(self.real, clock=self.clock, rng=random.Random(seed))
        self.segment: MadeSegment = SegmentMaker(tmp_path / str(seed)).segment()
        self.metadata = self.segment.metadata

    def copy(self) -> None:
        self.store.copy_log_segment_data(self.metadata, self.segment.data)

    def is_stored(self) -> bool:
        try:
            return self.real.fetch_log_segment(self.metadata, 0) == self.segment.log_bytes()
        except RemoteResourceNotFoundError:
            return False


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_store_without_faults_passes_everything(setup: Setup) -> None:
    setup.copy()
    assert setup.store.fetch_log_segment(setup.metadata, 0) == setup.segment.log_bytes()
    assert setup.store.fetch_index(setup.metadata, IndexType.OFFSET)
    setup.store.delete_log_segment_data(setup.metadata)
    assert not setup.is_stored()
    assert setup.store.faults_injected() == 0


@pytest.mark.parametrize(
    ("fault", "error", "stored"),
    [
        (Fault.ERROR_BEFORE, RemoteStorageError, False),
        (Fault.ERROR_AFTER, RemoteStorageError, True),
        (Fault.THROTTLED, RemoteStorageThrottledError, False),
        (Fault.FULL, RemoteStorageError, False),
    ],
)
def test_copy_fails_as_reported(
    setup: Setup, fault: Fault, error: type[Exception], stored: bool
) -> None:
    setup.store.fail_next(Operation.COPY, fault)
    with pytest.raises(error):
        setup.copy()
    assert setup.is_stored() is stored
    setup.copy()
    assert setup.is_stored()


@pytest.mark.parametrize(
    ("fault", "error"),
    [(Fault.SHORT_BODY, CorruptObjectError), (Fault.MISSING, RemoteResourceNotFoundError)],
)
def test_read_fails_as_reported(setup: Setup, fault: Fault, error: type[Exception]) -> None:
    setup.copy()
    setup.store.fail_next(Operation.FETCH_LOG, fault)
    with pytest.raises(error):
        setup.store.fetch_log_segment(setup.metadata, 0)


def test_corrupt_body_has_one_bit_wrong(setup: Setup) -> None:
    setup.copy()
    setup.store.fail_next(Operation.FETCH_LOG, Fault.CORRUPT_BODY)
    damaged = bytes(setup.store.fetch_log_segment(setup.metadata, 0))
    original = setup.segment.log_bytes()
    assert len(damaged) == len(original)
    difference = int.from_bytes(damaged, "big") ^ int.from_bytes(original, "big")
    assert difference.bit_count() == 1


def test_slow_call_takes_the_clocks_time(setup: Setup) -> None:
    setup.store.fail_next(Operation.COPY, Fault.SLOW)
    setup.copy()
    assert setup.clock.monotonic_s() == 10
    assert setup.is_stored()


def test_standing_fault_stays_until_healed(setup: Setup) -> None:
    setup.store.fail_always(Operation.COPY, Fault.FULL)
    for _ in range(3):
        with pytest.raises(RemoteStorageError):
            setup.copy()
    setup.store.heal()
    setup.copy()
    assert setup.is_stored()


def test_script_lets_calls_pass_in_between(setup: Setup) -> None:
    setup.store.fail_next(Operation.DELETE, None, Fault.ERROR_BEFORE)
    setup.store.delete_log_segment_data(setup.metadata)
    with pytest.raises(RemoteStorageError):
        setup.store.delete_log_segment_data(setup.metadata)


def test_fault_an_operation_cannot_meet_is_refused(setup: Setup) -> None:
    with pytest.raises(ValueError, match="fault=full"):
        setup.store.fail_next(Operation.FETCH_LOG, Fault.FULL)
    with pytest.raises(ValueError, match="fault=corrupt_body"):
        setup.store.fail_always(Operation.DELETE, Fault.CORRUPT_BODY)


def test_call_that_is_not_modelled_is_an_error(setup: Setup) -> None:
    with pytest.raises(AttributeError):
        setup.store.rename_segment(setup.metadata)


def trace_of(tmp_path: Path, seed: int) -> list[Call]:
    setup = Setup(tmp_path / "run", seed)
    for fault in (Fault.ERROR_BEFORE, Fault.THROTTLED):
        setup.store.fail_at_random(Operation.COPY, fault, probability=0.4)
    for _ in range(30):
        try:
            setup.copy()
        except RemoteStorageError:
            continue
    return setup.store.trace


def test_same_seed_gives_the_same_faults(tmp_path: Path) -> None:
    first, second = (trace_of(tmp_path / name, seed=5) for name in ("first", "second"))
    assert first == second
    assert {call.fault for call in first} == {None, Fault.ERROR_BEFORE, Fault.THROTTLED}
