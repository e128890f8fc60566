"""The interface of decoders for all formats of keys and values."""

from __future__ import annotations

from typing import Protocol

from isotherm.spark.tables.framed_values import Framing
from isotherm.spark.tables.json_values import DecodedValues, Values
from isotherm.spark.tables.value_types import ValueType


class ValueDecoder(Protocol):
    """Decodes values to one column. `value_type` is the column's type, None while no field has been
    seen. If it `has_grown`, the columns are unusable. `framing` is None if values do not name their
    schemas."""

    @property
    def framing(self) -> Framing | None: ...

    @property
    def value_type(self) -> ValueType: ...

    @property
    def has_grown(self) -> bool: ...

    def decode(self, values: Values) -> DecodedValues: ...
