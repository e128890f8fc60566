"""How all kernels are compiled. Importing this module loads Numba.

To the signatures given, kept on disk, and without the GIL. They allocate nothing, and are told so
(`_nrt`): Numba else counts references to the arrays that it passes on, atomically and for every
record, which took more than half of the time that decoding took.
"""

from __future__ import annotations

import functools

import numba

kernel = functools.partial(numba.njit, cache=True, nogil=True, _nrt=False)
