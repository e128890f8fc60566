"""Decodes a batch of values together.

If that fails, its halves are tried, down to single bad values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from isotherm.spark.tables.json_values import DecodedValues, Places, Values
from isotherm.spark.tables.value_types import ValueType

DecodeTogether: TypeAlias = Callable[[Values, Places], DecodedValues | None]
"""Decodes values together, with their places in the batch. Returns None if their halves have to be
tried, but never for a single value."""


def decode_by_halves(payloads: Values, column: ValueType, decode: DecodeTogether) -> DecodedValues:
    """The values as `column`, and those that cannot be decoded, by their places. `column` is None
    for values without bytes."""
    parts = list(_decoded(payloads, np.arange(len(payloads)), decode)) if len(payloads) else []
    kind = pa.null() if column is None else column
    return DecodedValues(
        pa.concat_arrays([pa.array([], kind), *(part.column for part in parts)]),
        sorted(dead for part in parts for dead in part.dead),
    )


def _decoded(payloads: Values, places: Places, decode: DecodeTogether) -> Iterator[DecodedValues]:
    whole = decode(payloads, places)
    if whole is not None:
        yield whole
        return
    half = len(payloads) // 2
    for part in (slice(0, half), slice(half, None)):
        yield from _decoded(payloads[part], places[part], decode)
