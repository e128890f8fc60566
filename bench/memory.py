"""Prepares memory before a measurement writes to it.

A virtual machine's host takes back the free memory of its guest, and the next access to such a page
waits for the host to provide another. On the machine of docs/benchmarks.md that makes a GB written
to the page cache cost 2.5 CPU-seconds instead of 0.2, charged to the broker that happens to use
those pages.
"""

from __future__ import annotations

import mmap

import numpy as np


def make_ready(size: int) -> None:
    """Touch `size` bytes and free them: the kernel reuses them next, the host takes them back
    later.
    """
    if size:
        with mmap.mmap(-1, size) as memory:
            np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
