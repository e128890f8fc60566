"""Decodes JSON values that follow the id of a JSON Schema. The schema determines the types of the
fields that it declares, so that a number is a double even before the first one with a fraction, and
an integer stays one, also if it is written as 3.0: for JSON Schema these are the same. Other fields
get the type that is found, as without a schema.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from isotherm.spark.tables.framed_values import NO_FRAME, Framing, SchemaId, framed, not_framed
from isotherm.spark.tables.json_values import DeadValue, DecodedValues, JsonDecoder, Values
from isotherm.spark.tables.schema_registry import (
    RegistrySettings,
    UnknownSchemaError,
    registered_schema,
)
from isotherm.spark.tables.value_types import (
    DECLARED,
    LEVELS_MAX,
    REPEATED_LEVELS_MAX,
    ValueType,
    marked,
    merged,
    name_reason,
)

_SCHEMAS_MAX = 1000
_PARTS_MAX = 50_000
"""The most parts of a schema that are looked at."""
_SCALARS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
_NUMBERS = (pa.int64(), pa.float64())
Schema: TypeAlias = "Mapping[str, Any]"


class JsonSchemaDecoder:
    """A JsonDecoder with schemas. `type_of_schema` returns the type of a schema id, or raises
    UnknownSchemaError."""

    framing = Framing()

    def __init__(
        self,
        type_of_schema: Callable[[SchemaId], ValueType],
        fixed: ValueType,
        value_type: ValueType,
        *,
        may_grow: bool = True,
    ) -> None:
        self._type_of_schema = type_of_schema
        self._fixed = fixed
        self._may_grow = may_grow
        self._unknown: dict[SchemaId, str | None] = {}
        self._json = JsonDecoder(fixed, value_type, may_grow=may_grow, is_form_free=True)

    @property
    def value_type(self) -> ValueType:
        return self._json.value_type

    @property
    def has_grown(self) -> bool:
        return self._json.has_grown

    def decode(self, values: Values) -> DecodedValues:
        names, schemas, payloads = framed(values)
        dead = not_framed(schemas)
        is_lost = schemas == NO_FRAME
        for index, name in enumerate(names):
            reason = self._learn(name.id)
            if reason is not None:
                where = schemas == index
                is_lost |= where
                dead += [DeadValue(int(p), reason) for p in np.flatnonzero(where)]
        kept = np.flatnonzero(~is_lost)
        column, lost = self._json.decode(payloads.take(pa.array(kept, pa.int64())))
        dead += [DeadValue(int(kept[place]), reason) for place, reason in lost]
        dead.sort()
        return DecodedValues(column, dead)

    def _learn(self, schema_id: SchemaId) -> str | None:
        """Add the types of a schema. Returns the reason if its values are dead letters."""
        if schema_id not in self._unknown:
            self._unknown[schema_id] = None
            try:
                declared = self._type_of_schema(schema_id)
            except UnknownSchemaError as error:
                self._unknown[schema_id] = f"{error} schema_id={schema_id}"
            else:
                if self._may_grow:
                    self._json.value_type = merged(self._json.value_type, declared, self._fixed)
        return self._unknown[schema_id]


@functools.lru_cache(_SCHEMAS_MAX)
def schema_type(registry: RegistrySettings, schema_id: SchemaId) -> ValueType:
    """The type that a registered schema declares. Raises UnknownSchemaError if the id is not that
    of a JSON Schema, and SchemaRegistryError if the registry does not answer."""
    schema = registered_schema(registry, schema_id)
    if schema.kind != "JSON":
        raise UnknownSchemaError(f"the schema is not of json-schema but of {schema.kind}")
    try:
        root = json.loads(schema.text)
    except (ValueError, RecursionError) as error:
        raise UnknownSchemaError(f"the schema is no JSON or too deep error={error}") from error
    if not isinstance(root, dict):
        return None  # the schema `true` accepts any value
    declared = declared_type(root, root)
    return declared if isinstance(declared, pa.StructType) else None


def declared_type(schema: Schema, root: Schema) -> ValueType:
    """The type that the schema declares. None if only the values determine it: for several types,
    references to other documents, and parts deeper than columns may be. References may make a small
    schema very large. Then fewer levels of it are declared."""
    depth_max = LEVELS_MAX
    while True:
        try:
            return _Declaration(root, depth_max).type_of(schema)
        except _TooLargeError:
            depth_max //= 2


class _TooLargeError(Exception):
    """The schema has more than _PARTS_MAX parts."""


class _Declaration:
    """Finds the types of the parts of a schema, down to `depth_max` parts inside each other.

    A reference is a part.
    """

    def __init__(self, root: Schema, depth_max: int) -> None:
        self._root = root
        self._depth_max = depth_max
        self._parts = 0

    def type_of(self, schema: Schema, depth: int = 0, arrays: int = 0) -> ValueType:
        """The type of a part that is inside so many others, and so many arrays.

        Raises _TooLargeError.
        """
        # A reference may lead back to a part that contains it.
        if depth > self._depth_max:
            return None
        self._parts += 1
        if self._parts > _PARTS_MAX:
            raise _TooLargeError
        below = functools.partial(self.type_of, depth=depth + 1, arrays=arrays)
        target = _referred(schema, self._root)
        if target is not None:
            return below(target)
        kinds = schema.get("type")
        several = [kind for kind in kinds if kind != "null"] if isinstance(kinds, list) else [kinds]
        options = schema.get("oneOf", schema.get("anyOf"))
        if isinstance(options, list):
            choices = [option for option in options if option != {"type": "null"}]
            return below(choices[0]) if len(choices) == 1 and isinstance(choices[0], dict) else None
        if len(several) != 1:
            return None
        (kind,) = several
        if kind == "object":
            return _struct(schema.get("properties"), below)
        items = schema.get("items")
        if kind == "array" and isinstance(items, dict) and arrays < REPEATED_LEVELS_MAX:
            element = below(items, arrays=arrays + 1)
            return None if element is None else pa.list_(_declared("item", element))
        return _SCALARS.get(kind) if isinstance(kind, str) else None


def _struct(properties: object, below: Callable[[Schema], ValueType]) -> ValueType:
    if not isinstance(properties, dict):
        return None
    fields = [
        _declared(name, kind)
        for name, schema in properties.items()
        # Values with other names become dead letters.
        if isinstance(schema, dict) and name_reason(name) is None
        for kind in [below(schema)]
        if kind is not None
    ]
    return pa.struct(fields) if fields else None


def _declared(name: str, kind: pa.DataType) -> pa.Field[Any]:
    return marked(name, kind, DECLARED if kind in _NUMBERS else None)


def _referred(schema: Schema, root: Schema) -> Schema | None:
    path = schema.get("$ref")
    if not isinstance(path, str) or not path.startswith("#/"):
        return None
    part_of_root: Any = root
    for part in path[2:].split("/"):
        part_of_root = part_of_root.get(part) if isinstance(part_of_root, dict) else None
    return part_of_root if isinstance(part_of_root, dict) else None
