"""Short time slices for the event loop's thread, where the kernel has them (Linux 6.12).

A thread that wakes up waits until the present one has used up its slice, 3 ms by default, if as many
threads compute as there are processors. With a shorter slice of its own its deadline is earlier, and it
is let in sooner; its share of the processor stays the same. So the loop answers while threads of
the broker, or other processes, copy, compress and decode.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

SLICE_NS = 100_000
"""The shortest that Linux gives."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER = 0
# Threads that this one starts have the usual slice.
_RESET_ON_FORK = 0x01


class _Attributes(ctypes.Structure):
    """struct sched_attr, its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def shorten_slices() -> bool:
    """Of the calling thread. False where the kernel has no such thing, and nothing is changed."""
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    attributes = _Attributes(
        size=ctypes.sizeof(_Attributes),
        policy=_SCHED_OTHER,
        flags=_RESET_ON_FORK,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime=SLICE_NS,
    )
    libc = ctypes.CDLL(None, use_errno=True)
    done: int = libc.syscall(number, 0, ctypes.byref(attributes), 0)
    return done == 0
