"""Makes the response to a refused request from the schema of the response. Pure.

A response has one error code, or one for each item of the request in arrays that mirror the
request's arrays. The code is set in all these places. Fields that identify an item are copied from
the request. Every other field has the default of Kafka's schema, or is null, zero or empty.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.protocol.entities import blank_value
from isotherm.protocol.schema import SchemaField, cached_by_class, schema_fields

# Fields of Kafka's messages that identify an item.
_NAMES = frozenset(
    {
        "group_id",
        "name",
        "partition",
        "partition_index",
        "producer_id",
        "resource_name",
        "resource_type",
        "topic",
        "topic_id",
        "topic_name",
    }
)


class Items(NamedTuple):
    """The path of nested arrays in a request, outermost first, and the path of those in its
    response.

    `named` is the response's field for items that are plain names or numbers in the request.
    `split_depth` is the number of arrays at which a large request may be split; None for all.
    `answered_once`: an outermost item without inner ones that a request repeats has one answer.
    """

    request: tuple[str, ...]
    response: tuple[str, ...]
    named: str = ""
    split_depth: int | None = None
    answered_once: bool = False


class Refusal(NamedTuple):
    """`fixed` has values of fields, at any depth, that come neither from the schema nor from the
    request.
    """

    code: ErrorCode
    message: str | None
    fixed: Mapping[str, Any]


@cached_by_class
def _fields(entity_type: type[Any]) -> Sequence[SchemaField]:
    return schema_fields(entity_type)


def refusing_response(
    response_type: type[Any], request: Any, refusal: Refusal, items: Sequence[Items]
) -> Any:
    """The response that refuses a request as a whole. `items` are those of all versions; the first
    that the request's version has is used."""
    if any(field.kafka_type == "error_code" for field in _fields(response_type)):
        return _refuse(response_type, request, refusal, None)
    mirrored = next((item for item in items if hasattr(request, item.request[0])), None)
    return _refuse(response_type, request, refusal, mirrored)


def refused_items(
    response_type: type[Any], request: Any, refusal: Refusal, items: Sequence[Items]
) -> Any:
    """The response in which every item has the error code, and the whole response has none."""
    mirrored = next(item for item in items if hasattr(request, item.request[0]))
    response = _refuse(response_type, request, refusal, mirrored)
    if hasattr(response, "error_code"):
        response = dataclasses.replace(response, error_code=ErrorCode.none, **_no_message(response))
    return response


def _no_message(response: Any) -> dict[str, None]:
    return {"error_message": None} if hasattr(response, "error_message") else {}


def _refuse(
    response_type: type[Any], request: Any, refusal: Refusal, items: Items | None, depth: int = 0
) -> Any:
    values: dict[str, Any] = {}
    for field in _fields(response_type):
        name = field.name
        if name in refusal.fixed:
            values[name] = refusal.fixed[name]
        elif field.tag is not None:
            continue
        elif field.kafka_type == "error_code":
            values[name] = refusal.code
        elif name == "error_message":
            values[name] = refusal.message
        elif items is not None and items.response[depth : depth + 1] == (name,):
            assert field.entity_type is not None
            values[name] = tuple(
                _refuse(field.entity_type, inner, refusal, items, depth + 1)
                for inner in getattr(request, items.request[depth]) or ()
            )
        elif items is not None and depth == len(items.response) and name == items.named:
            values[name] = request
        elif depth and name in _NAMES and hasattr(request, name):
            values[name] = getattr(request, name)
        elif not field.has_default:
            values[name] = blank_value(field)
    return response_type(**values)
