"""The memory of an Arrow array of binary values as NumPy arrays, without a copy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# The stubs lack types that it takes.
_array_of: Any = np.frombuffer


class BinaryBuffers(NamedTuple):
    """Value i is `data[offsets[i]:offsets[i + 1]]`. The first offset need not be 0, because the
    array may be a slice."""

    offsets: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]


def binary_buffers(values: pa.Array[Any]) -> BinaryBuffers:
    buffers = values.buffers()
    offsets = _array_of(buffers[1], np.int32)[values.offset :][: len(values) + 1]
    return BinaryBuffers(offsets, _array_of(buffers[2] or b"", np.uint8)[: offsets[-1]])
