"""The cleaner's I/O throttle keeps its rate over any run of transfers."""

from __future__ import annotations

import sys
import threading

from hypothesis import given
from hypothesis import strategies as st

from isotherm.log.cleaner.log_cleaner import IoThrottle
from isotherm.testing.sim_clock import SimClock

NEVER = threading.Event()


@given(
    rate=st.integers(1, 10**9),
    sizes=st.lists(st.integers(1, 10**7), min_size=1, max_size=20),
    pauses_ms=st.lists(st.integers(0, 1000), min_size=20, max_size=20),
)
def test_rate_is_kept_over_any_run_of_transfers(
    rate: int, sizes: list[int], pauses_ms: list[int]
) -> None:
    clock = SimClock(auto_advance=True)
    throttle = IoThrottle(clock, rate)
    for size, pause_ms in zip(sizes, pauses_ms, strict=False):
        start_s = clock.monotonic_s()
        throttle.pay(size, NEVER)
        # The throttle may defer 10 ms of debt, and the simulated clock has whole milliseconds.
        assert size <= rate * (clock.monotonic_s() - start_s + 0.0115)
        clock.advance(pause_ms)


def test_small_debts_add_up_to_a_wait() -> None:
    clock = SimClock(auto_advance=True)
    throttle = IoThrottle(clock, 1000)
    for _ in range(500):
        throttle.pay(2, NEVER)
    assert 0.98 <= clock.monotonic_s() <= 1.0


def test_default_rate_never_waits() -> None:
    clock = SimClock(auto_advance=True)
    throttle = IoThrottle(clock, sys.float_info.max)
    throttle.pay(2**40, NEVER)
    assert clock.monotonic_s() == 0


def test_new_rate_forgives_old_debts() -> None:
    clock = SimClock()
    throttle = IoThrottle(clock, 1)
    aborted = threading.Event()
    aborted.set()
    throttle.pay(10**9, aborted)
    throttle.update_rate(10**9)
    throttle.pay(1, NEVER)
    assert clock.monotonic_s() == 0
