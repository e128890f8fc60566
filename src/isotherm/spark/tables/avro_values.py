"""Decodes Avro values of records to one Arrow column. Polars parses them, a batch at a time.

Polars reads Avro files, in which nothing marks the end of a record. So a batch is turned into a
file with a mark after each value: eight random bytes that no value can contain on purpose. If all
marks are where they belong, each value was read from its own bytes, to their end.

If a batch does not parse, its halves are tried. fastavro reads small batches that do not parse, and
schemas that Polars cannot read (maps, unions of several types), value by value.
"""

from __future__ import annotations

import io
import itertools
import json
import secrets
import struct
from collections.abc import Iterator
from typing import Any

import fastavro
import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute
from polars.exceptions import PanicException, PolarsError

from isotherm.spark.tables.avro_schema import parsed_schema
from isotherm.spark.tables.avro_types import AvroSchemaError, AvroType, avro_type
from isotherm.spark.tables.column_limits import UnfitValueError
from isotherm.spark.tables.halving import decode_by_halves
from isotherm.spark.tables.json_values import DeadValue, DecodedValues, Places, Values
from isotherm.spark.tables.schema_registry import RegisteredSchema, UnknownSchemaError

pc: Any = pyarrow.compute

_SLOW_MAX = 64
"""The most values that are read one by one if they do not parse together."""

_MARK_SIZE = 8
_MARK_TYPE: Any = pa.binary(_MARK_SIZE)
_py_buffer: Any = pa.py_buffer  # the stubs do not know arrays of NumPy
_SYNC = bytes(16)


class AvroCodec:
    """Decodes the values of one schema. `column` is their type, None for values without bytes.

    Raises UnknownSchemaError for an invalid schema, and for one that cannot become a column.
    """

    def __init__(self, schema: RegisteredSchema) -> None:
        try:
            self._type = _parsed(schema)
        except (fastavro.schema.SchemaParseException, AvroSchemaError, ValueError) as error:
            raise UnknownSchemaError(f"the schema cannot be a column: {error}") from error
        except (KeyError, TypeError, RecursionError) as error:
            raise UnknownSchemaError(f"the schema is not one of Avro: {error!r}") from error
        self.column = self._type.column
        self._kind = pa.null() if self.column is None else self.column
        self._wire = fastavro.parse_schema(self._type.wire(_names()))
        self._head = _head(self._type) if self._type.is_vectorized and self.column else None

    def decode(self, payloads: Values) -> DecodedValues:
        """The values as `column`, and those that cannot be decoded. `payloads` has no nulls."""
        return decode_by_halves(payloads, self.column, self._decode_together)

    def _decode_together(self, payloads: Values, places: Places) -> DecodedValues | None:
        if self._head is None or len(payloads) <= _SLOW_MAX:
            return self._decode_slowly(payloads, places)
        column = self._parsed_together(payloads, self._head)
        return None if column is None else DecodedValues(column, ())

    def _parsed_together(self, payloads: Values, head: bytes) -> Values | None:
        """The column. None if a value does not match the schema."""
        marks = _marks(len(payloads))
        rows = pc.binary_join_element_wise(payloads, marks.cast(pa.binary()), b"")
        body = memoryview(rows.buffers()[2])
        file = b"".join((head, _long(len(rows)), _long(len(body)), body, _SYNC))
        try:
            read = polars.read_avro(io.BytesIO(file)).to_arrow()
            if read.num_rows != len(rows) or not read.column("m").cast(pa.binary()).equals(
                pa.chunked_array([marks.cast(pa.binary())])
            ):
                return None
            stored = pa.concat_arrays(read.column("v").cast(self._type.stored).chunks)
            column: Values = self._type.column_of(stored)
        except (PolarsError, PanicException, OSError, pa.ArrowException):
            return None
        return column

    def _decode_slowly(self, payloads: Values, places: Places) -> DecodedValues:
        parts: list[Values] = []
        dead: list[DeadValue] = []
        read: list[tuple[int, Any]] = []
        for place, payload in zip(places.tolist(), payloads.to_pylist(), strict=True):
            try:
                read.append((place, self._read(payload)))
            except EOFError:
                dead.append(DeadValue(place, "it ends before its schema does"))
            except (ValueError, LookupError, ArithmeticError, TypeError, struct.error) as error:
                dead.append(DeadValue(place, f"it is not Avro of its schema: {error}"))
            except (MemoryError, RecursionError):
                dead.append(DeadValue(place, "it is not Avro of its schema: it is too large"))
        self._collect(read, parts, dead)
        return DecodedValues(pa.concat_arrays(parts or [pa.array([], self._kind)]), dead)

    def _read(self, payload: bytes | None) -> Any:
        assert payload is not None, "decode has none of these"
        stream = io.BytesIO(payload)
        value = fastavro.schemaless_reader(stream, self._wire, None, return_record_name=True)
        left = len(payload) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left behind it")
        return self._type.stored_value(value)

    def _collect(
        self, read: list[tuple[int, Any]], parts: list[Values], dead: list[DeadValue]
    ) -> None:
        if not read:
            return
        if self.column is None:
            parts.append(pa.nulls(len(read)))
            return
        try:
            stored = pa.array([value for _, value in read], self._type.stored)
            parts.append(self._type.column_of(stored))
        except (pa.ArrowException, OverflowError) as error:
            if len(read) == 1:
                is_told = isinstance(error, UnfitValueError)
                reason = str(error) if is_told else f"it does not fit its column: {error}"
                dead.append(DeadValue(read[0][0], reason))
                return
            half = len(read) // 2
            self._collect(read[:half], parts, dead)
            self._collect(read[half:], parts, dead)


def _parsed(schema: RegisteredSchema) -> AvroType:
    parsed = parsed_schema(schema)
    return avro_type(parsed.schema, parsed.names)


def _names() -> Iterator[str]:
    return (f"n{number}" for number in itertools.count())


def _head(kind: AvroType) -> bytes:
    """The head of an Avro file, up to its block."""
    names = _names()
    mark = {"type": "fixed", "name": next(names), "size": _MARK_SIZE}
    fields = [{"name": "v", "type": kind.wire(names)}, {"name": "m", "type": mark}]
    schema = json.dumps({"type": "record", "name": next(names), "fields": fields}).encode()
    pairs = ((b"avro.schema", schema), (b"avro.codec", b"null"))
    texts = [part for pair in pairs for text in pair for part in (_long(len(text)), text)]
    return b"".join((b"Obj\x01", _long(len(pairs)), *texts, _long(0), _SYNC))


def _marks(count: int) -> Any:
    numbers = np.arange(count, dtype=np.uint64) + np.uint64(secrets.randbits(63))
    return pa.FixedSizeBinaryArray.from_buffers(_MARK_TYPE, count, [None, _py_buffer(numbers)])


def _long(value: int) -> bytes:
    """A count as Avro writes it."""
    value <<= 1
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))
