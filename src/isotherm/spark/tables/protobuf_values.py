"""Decodes Protobuf values of records to one Arrow column. ptars, a compiled library, reads a batch
at a time. If that fails, the halves of the batch are tried, down to single bad values."""

from __future__ import annotations

import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from ptars import HandlerPool, PtarsConfig

from isotherm.spark.tables.column_limits import UnfitValueError
from isotherm.spark.tables.halving import decode_by_halves
from isotherm.spark.tables.json_values import DeadValue, DecodedValues, Places, Values
from isotherm.spark.tables.protobuf_types import ProtobufSchemaError, Wire
from isotherm.spark.tables.schema_registry import UnknownSchemaError

# Without this setting ptars panics at a map entry without a value.
_CONFIG = PtarsConfig(map_value_nullable=True)


class ProtobufCodec:
    """Decodes values that are messages of one type. `column` is the column's type, None without
    fields. With `is_compared`, values that differ stay different: those with nanoseconds are dead.

    Raises UnknownSchemaError for a message that cannot become a column.
    """

    def __init__(self, message: Descriptor, *, is_compared: bool = False) -> None:
        try:
            wire = Wire(message, is_compared=is_compared)
        except ProtobufSchemaError as error:
            raise UnknownSchemaError(f"the schema cannot be a column: {error}") from error
        self._type = wire.message
        self.column = self._type.column
        pool = DescriptorPool()
        pool.Add(wire.file)
        plain = pool.FindMessageTypeByName(self._type.wire_name[1:])
        self._reader = HandlerPool([plain.file], _CONFIG).get_for_message(plain)

    def decode(self, payloads: Values) -> DecodedValues:
        """The values as `column`, and those that cannot be decoded. `payloads` has no nulls."""
        return decode_by_halves(payloads, self.column, self._decode_together)

    def _decode_together(self, payloads: Values, places: Places) -> DecodedValues | None:
        try:
            stored = self._reader.array_to_record_batch(payloads).to_struct_array()
            return DecodedValues(self._type.column_of(stored), ())
        except BaseException as error:
            if not isinstance(error, ValueError | pa.ArrowException) and not _is_panic(error):
                raise
            if len(payloads) > 1:
                return None
            is_told = isinstance(error, UnfitValueError)
            reason = str(error) if is_told else f"it is not of its schema: {error}"
            dead = DeadValue(int(places[0]), reason)
            kind = pa.null() if self.column is None else self.column
            return DecodedValues(pa.array([], kind), [dead])


def _is_panic(error: BaseException) -> bool:
    """Whether the error is a panic of compiled code, as for a length beyond the end. No module
    exports its class, so it is found by its name."""
    return type(error).__name__ == "PanicException"
