"""Short time slices for the event loop's thread, where the kernel supports them (Linux 6.12).

If as many threads compute as there are processors, a thread that wakes up waits until the running
one has used up its slice, which is 3 ms by default. A shorter slice of its own gives the thread an
earlier deadline, so it runs sooner; its share of the processor stays the same. So the event loop
answers while other threads of the broker, or other processes, copy, compress and decode.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

SLICE_NS = 100_000
"""The shortest slice that Linux allows."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER = 0
# Threads that this thread starts have the default slice.
_RESET_ON_FORK = 0x01


class _Attributes(ctypes.Structure):
    """The first version of struct sched_attr."""

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
    """Shorten the slice of the calling thread. Returns False, with nothing changed, if the kernel
    does not support it."""
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
