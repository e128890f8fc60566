"""Conditions on JSON: what they match, and which texts are none."""

from __future__ import annotations

import pytest

from isotherm.errors import InvalidRequestError
from isotherm.storage_view.json_condition import json_condition

RECORD = (
    b'{"user": {"id": 42, "name": "Ann Lee", "is_new": true, "left": null},'
    b' "items": [{"sku": "A-1"}, {"sku": "B-2"}], "price": 9.5, "id": "42"}'
)


@pytest.mark.parametrize(
    "condition",
    [
        "value.user.id = 42",
        "value.user.id=42.0",
        'value.user.name = "Ann Lee"',
        "value.user.name = Ann Lee",
        "value.user.name ~ Lee",
        "value.items[1].sku = B-2",
        "value.price >= 9.5",
        "value.price < 10",
        "value.user.is_new = true",
        "value.user.left = null",
        "value.user.id != 43",
        'value.id = "42"',
        "value.id ~ 4",
        "value.user.name > Ann",
    ],
)
def test_record_that_meets_a_condition_matches(condition: str) -> None:
    assert json_condition(condition).matches(RECORD)


def test_json_after_the_id_of_a_schema_matches() -> None:
    condition = json_condition("value.user.id = 42")
    assert condition.matches(b"\0\0\0\0\7" + RECORD)
    assert not condition.matches(b"\1\0\0\0\7" + RECORD)
    assert not condition.matches(b"\0\0\0\0\7\x02\x08Ann")
    # Its first byte is that of a schema's id too.
    assert condition.matches(RECORD.decode().encode("utf-16-be"))


@pytest.mark.parametrize(
    "condition",
    [
        "value.user.id = 43",
        "value.id = 42",
        "value.user.is_new = 1",
        "value.user.none = 1",
        "value.user.none != 1",
        "value.items[2].sku = B-2",
        "value.user[0] = 1",
        "value.items.sku = A-1",
        "value.price > 9.5",
        "value.user.left = 0",
        "value = 1",
    ],
)
def test_record_that_does_not_meet_a_condition_does_not_match(condition: str) -> None:
    assert not json_condition(condition).matches(RECORD)


@pytest.mark.parametrize(
    "data", [None, b"", b"text", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
def test_bytes_that_are_no_json_do_not_match(data: bytes | None) -> None:
    assert not json_condition("value.a = 1").matches(data)


def test_whole_key_may_be_compared() -> None:
    condition = json_condition("key = 7")
    assert condition.part == "key"
    assert condition.matches(b"7")


@pytest.mark.parametrize(
    "text",
    ["", "user.id = 42", "value.user.id", "value.user.id =", "value..a = 1", "value.a < true"],
)
def test_text_that_is_no_condition_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"value\.|numbers or texts"):
        json_condition(text)
