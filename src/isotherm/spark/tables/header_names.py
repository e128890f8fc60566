"""Names of schemas in the headers of records, where Confluent's HeaderSchemaIdSerializer puts them.

The header has the bytes that are otherwise before the value (framed_values). As in Confluent's
DualSchemaIdDeserializer the last header of the name counts, and one without a value does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from isotherm.spark.tables.framed_values import Framing, frame_size
from isotherm.spark.tables.json_values import Values
from isotherm.spark.tables.value_types import KeyValue

NAME_HEADERS = KeyValue("__key_schema_id", "__value_schema_id")
# The stubs of these lack types that they take.
pc: Any = pyarrow.compute


def named_values(values: Values, headers: Any, name: str, framing: Framing | None) -> Values:
    """The values, each behind the frame that is in its record's header `name`. With another header
    it is empty, which is a value without a schema. Without `framing` values stay what they are."""
    frames = None if framing is None else _last_values(headers, name)
    if framing is None or frames is None:
        return values
    # Usually the records of a batch name one schema.
    named = frames.dictionary_encode()
    heads = [
        None if header is None else _frame(header, framing)
        for header in named.dictionary.to_pylist()
    ]
    of_records = pa.array(heads, pa.binary()).take(named.indices)
    is_lost = pc.and_(frames.is_valid(), pc.and_(of_records.is_null(), values.is_valid()))
    joined = pc.binary_join_element_wise(pc.fill_null(of_records, b""), values, b"")
    return pc.if_else(is_lost, pa.scalar(b"", pa.binary()), joined)  # type: ignore[no-any-return]


def last_header(headers: Sequence[tuple[str, bytes | None]], name: str) -> bytes | None:
    """The value of the last header of a name, of one record."""
    return next((value for key, value in reversed(headers) if key == name), None)


def named_value(value: bytes | None, header: bytes | None, *, has_path: bool) -> bytes | None:
    """As `named_values`, for one value and the value of its header."""
    if value is None or header is None:
        return value
    head = _frame(header, Framing(has_path))
    return b"" if head is None else head + value


def _frame(header: bytes, framing: Framing) -> bytes | None:
    """The frame at the beginning of a header.

    Confluent's deserializers ignore what is behind it.
    """
    size = frame_size(header, has_path=framing.has_path)
    return header[:size] if size else None


def _last_values(headers: Any, name: str) -> pa.Array[Any] | None:
    """For each record the value of its last header of this name. None if no record has one."""
    flat = headers.flatten()
    hits = np.flatnonzero(pc.fill_null(pc.equal(pc.struct_field(flat, "key"), name), False))
    if not len(hits):
        return None
    ends = np.cumsum(pc.fill_null(pc.list_value_length(headers), 0))
    places = np.full(len(headers), -1)
    # Of several headers of one record the last one stays.
    places[np.searchsorted(ends, hits, side="right")] = hits
    indices = pa.array(places, pa.int64(), mask=places < 0)
    return pc.struct_field(flat, "value").take(indices)  # type: ignore[no-any-return]
