"""Shorter scheduler slices for the calling thread alone, where the kernel supports them."""

from __future__ import annotations

import ctypes
import platform
import threading

import pytest

from isotherm.broker.threads import scheduling
from isotherm.broker.threads.scheduling import SLICE_NS, shorten_slices

_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}


def slice_ns() -> int:
    """The calling thread's slice in ns, as the kernel reports it."""
    found = scheduling._Attributes()
    size = ctypes.sizeof(found)
    number = _SCHED_GETATTR[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, 0, ctypes.byref(found), size, 0) == 0
    return int(found.runtime)


def in_thread(act: object) -> list[object]:
    """Run `act` in a new thread, because a thread keeps its slice. Returns its result in a list."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(act()))  # type: ignore[operator]
    thread.start()
    thread.join()
    return found


def test_slices_are_those_of_the_calling_thread_alone() -> None:
    def shorten() -> tuple[bool, int, list[object]]:
        return shorten_slices(), slice_ns(), in_thread(slice_ns)

    before = slice_ns()
    ((is_done, own, of_child),) = in_thread(shorten)  # type: ignore[misc]
    if not is_done or own == 0:
        pytest.skip("this kernel has no slices of a thread's own: Linux 6.12 does")
    assert own == SLICE_NS
    assert of_child != [SLICE_NS]
    # A broker that ran in this thread in an earlier test has shortened its slices.
    assert slice_ns() == before


def test_elsewhere_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling.platform, "machine", lambda: "riscv64")
    assert not shorten_slices()
