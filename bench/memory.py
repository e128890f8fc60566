"""Memory made ready before it is measured who writes to it.

A virtual machine's host takes back what the guest leaves free, and who touches such a page next waits
for the host to bring another. On the machine of docs/benchmarks.md that makes a GB written to the page
cache cost 2.5 CPU-seconds instead of 0.2, charged to whichever broker happens to meet those pages.
"""

from __future__ import annotations

import mmap

import numpy as np


def make_ready(size: int) -> None:
    """Touch so many bytes and free them: the kernel gives them out next, the host gets them later."""
    if size:
        with mmap.mmap(-1, size) as memory:
            np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
