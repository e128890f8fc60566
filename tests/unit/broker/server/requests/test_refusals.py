"""A refusal gives its error for each thing asked for, in every API and version that is served."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import APIS, SERVED
from isotherm.broker.server.requests.refusals import Items, Refusal, refusing_response
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.codec import encoder
from isotherm.protocol.entities import blank_entity, entity_of
from isotherm.protocol.schema import schema_fields

CODE = ErrorCode.kafka_storage_error
# These APIs write their refusals themselves. Other tests cover them.
NOT_DERIVED = {key for key, api in APIS.items() if api.refuse_by is not None}

# The answers list log directories, which the request does not name, and these versions have no
# error code for the whole.
NO_PLACE = {(ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)}


def asked(request_type: type[Any]) -> Any:
    """A request with one element in each array."""
    values: dict[str, Any] = {}
    for field in schema_fields(request_type):
        if field.is_array and field.entity_type is not None:
            values[field.name] = (dataclasses.asdict(asked(field.entity_type)),)
        elif field.is_array:
            values[field.name] = ("x" if field.kafka_type == "string" else 1,)
    return blank_entity(request_type, values)


def codes(message: Any) -> Iterator[ErrorCode]:
    """All error codes in a response, at any depth."""
    if isinstance(message, tuple):
        for each in message:
            yield from codes(each)
    elif dataclasses.is_dataclass(message):
        for field in dataclasses.fields(message):
            yield from codes(getattr(message, field.name))
    elif isinstance(message, ErrorCode):
        yield message


@pytest.mark.parametrize("key", [key for key in APIS if key not in NOT_DERIVED])
def test_refusal_made_from_the_schema_says_its_error(key: int) -> None:
    for version in range(SERVED[key].min, SERVED[key].max + 1):
        response_type = response_class(key, version)
        request = asked(request_class(key, version))
        refusal = Refusal(CODE, None, APIS[key].fixed)
        response = refusing_response(response_type, request, refusal, APIS[key].items)
        if "error_code" in typing.get_type_hints(response_type):
            assert response.error_code is CODE
        assert set(codes(response)) == (set() if (key, version) in NO_PLACE else {CODE})
        encoder(response_type)(response, bytearray())


def test_what_is_asked_for_is_named_and_the_rest_is_blank_or_fixed() -> None:
    request = entity_of(
        request_class(ApiKey.DELETE_RECORDS, 2),
        {
            "topics": [
                {"name": "a", "partitions": [{"partition_index": n, "offset": 9} for n in (0, 2)]},
                {"name": "b", "partitions": [{"partition_index": 1, "offset": 9}]},
            ],
            "timeout": None,
        },
    )
    response = refusing_response(
        response_class(ApiKey.DELETE_RECORDS, 2),
        request,
        Refusal(CODE, None, {"low_watermark": -1}),
        [Items(("topics", "partitions"), ("topics", "partitions"))],
    )
    refused = [
        (topic.name, partition.partition_index, partition.low_watermark, partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    ]
    assert refused == [("a", 0, -1, CODE), ("a", 2, -1, CODE), ("b", 1, -1, CODE)]


def test_plain_items_go_into_the_field_that_is_named() -> None:
    request = entity_of(request_class(ApiKey.DELETE_GROUPS, 2), {"groups_names": ("a", "b")})
    items = [Items(("groups_names",), ("results",), named="group_id")]
    response = refusing_response(
        response_class(ApiKey.DELETE_GROUPS, 2), request, Refusal(CODE, None, {}), items
    )
    assert [(result.group_id, result.error_code) for result in response.results] == [
        ("a", CODE),
        ("b", CODE),
    ]
