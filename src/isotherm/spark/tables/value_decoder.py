"""What all formats of keys and values have in common."""

from __future__ import annotations

from typing import Protocol

from isotherm.spark.tables.json_values import DecodedValues, Values
from isotherm.spark.tables.value_types import ValueType


class ValueDecoder(Protocol):
    """Turns values into one column. `known` is the column's type, None without a known field; if it
    `has_grown`, columns are of no use any more."""

    @property
    def known(self) -> ValueType: ...

    @property
    def has_grown(self) -> bool: ...

    def decode(self, values: Values) -> DecodedValues: ...
