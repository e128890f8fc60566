"""Conditions on one place of a JSON key or value: `value.user.id = 42`."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from isotherm.errors import InvalidRequestError

Part: TypeAlias = Literal["key", "value"]

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda text, part: part in text,
}
_CONDITION = re.compile(
    r"\s*(key|value)((?:\.[^\s.\[\]=!<>~]+|\[[0-9]{1,9}\])*)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*",
    re.DOTALL,
)
_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")
_ABSENT = object()
_SCHEMA_ID_MAGIC = b"\0"
_SCHEMA_ID_SIZE = 5


@dataclass(frozen=True, slots=True)
class JsonCondition:
    """`path` leads from the whole key or value through names of fields and places of lists.
    `~` looks for a text within a text; the other operators compare numbers, texts, booleans and
    null, each only with their like."""

    part: Part
    path: tuple[str | int, ...]
    operator: str
    literal: str | float | bool | None

    def matches(self, data: bytes | None) -> bool:
        """False if the bytes are no JSON, have nothing at the path, or something of another
        kind. JSON may follow the five bytes with which a schema registry names the schema."""
        value = _ABSENT if data is None else self._at_path(_parsed(data))
        if value is _ABSENT or _kind(value) != _kind(self.literal):
            return False
        if self.operator in ("=", "!=") or _kind(value) in ("number", "text"):
            return _OPERATORS[self.operator](value, self.literal)
        return False

    def _at_path(self, value: Any) -> Any:
        for step in self.path:
            if isinstance(step, int):
                is_there = isinstance(value, list) and step < len(value)
            else:
                is_there = isinstance(value, dict) and step in value
            if not is_there:
                return _ABSENT
            value = value[step]
        return value


def _parsed(data: bytes) -> Any:
    """_ABSENT if the bytes are no JSON."""
    framed = [data[_SCHEMA_ID_SIZE:]] if data.startswith(_SCHEMA_ID_MAGIC) else []
    for payload in (*framed, data):
        try:
            return json.loads(payload)
        except (ValueError, RecursionError):
            continue
    return _ABSENT


def json_condition(text: str) -> JsonCondition:
    """Parse a condition. What follows the operator is JSON, or a text without quotes. Raises
    InvalidRequestError."""
    match = _CONDITION.fullmatch(text)
    if match is None or not match[4]:
        raise InvalidRequestError(
            f"not a condition: {text!r}. It is like value.user.id = 42, key.name = Ann or"
            " value.items[0].sku ~ A-; the operators are = != < <= > >= ~"
        )
    part: Part = "key" if match[1] == "key" else "value"
    path = tuple(name or int(place) for name, place in _STEP.findall(match[2]))
    literal = _literal(match[4])
    if match[3] == "~" and not isinstance(literal, str):
        literal = match[4]
    if match[3] not in ("=", "!=") and _kind(literal) not in ("number", "text"):
        raise InvalidRequestError(f"{match[3]} compares numbers or texts: {text!r}")
    return JsonCondition(part, path, match[3], literal)


def _literal(text: str) -> str | float | bool | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, (dict, list)) else value


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else type(value).__name__
