"""Fields of JSON values become null, and no other byte changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.remote.erasure.redaction import parse_field, redacted

NAMES = st.sampled_from(["a", "b", "a.b", "é", 'q"', ""])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "fields", "expected"),
    [
        ('{"user": {"name" : "Ada", "id": 1.00}}', ["user.name"],
         '{"user": {"name" : null, "id": 1.00}}'),
        ('{"n": 12345678901234567890123, "a": "\\u0041"}', ["n"], '{"n": null, "a": "\\u0041"}'),
        ('{"n": ' + "9" * 5000 + ', "m": -0.0, "a": 1e400}', ["a"],
         '{"n": ' + "9" * 5000 + ', "m": -0.0, "a": null}'),
        ('[{"a": 1}, {"b": 2}, [{"a": {"c": []}}], 7]', ["a"],
         '[{"a": null}, {"b": 2}, [{"a": null}], 7]'),
        ('{"a": 1, "a": 2}', ["a"], '{"a": null, "a": null}'),
        ('{"a": {"b": 1}}', ["a.b", "a"], '{"a": null}'),
        ('{"\\u0061": 1}', ["a"], '{"\\u0061": null}'),
        (' { "a" : null } ', ["a"], ' { "a" : null } '),
        ('{"a": [1, 2]}', ["a"], '{"a": null}'),
        ('{}', ["a"], '{}'),
        ('"a"', ["a"], '"a"'),
        ('{"é": "ü", "b": 1}', ["é"], '{"é": null, "b": 1}'),
    ],
)  # fmt: skip
def test_field_is_replaced_and_the_rest_stays(value: str, fields: list[str], expected: str) -> None:
    paths = [parse_field(field) for field in fields]
    assert redacted(value.encode(), paths).decode() == expected


@given(VALUES, st.lists(st.lists(NAMES.filter(bool), min_size=1, max_size=3), min_size=1))
def test_redaction_is_that_of_a_model(value: Any, paths: list[list[str]]) -> None:
    expected = json.loads(json.dumps(value))
    for path in paths:
        clear(expected, path)
    fields = [tuple(path) for path in paths]
    once = redacted(json.dumps(value, ensure_ascii=False).encode(), fields)
    assert json.loads(once) == expected
    assert redacted(once, fields) == once


def clear(value: Any, path: list[str]) -> None:
    if isinstance(value, list):
        for each in value:
            clear(each, path)
    elif isinstance(value, dict) and path[0] in value:
        if len(path) == 1:
            value[path[0]] = None
        else:
            clear(value[path[0]], path[1:])


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"\x00\x00\x00\x00\x01{}", b"{'a': 1}", b"\xff", b"\xef\xbb\xbf{}", b"[" * 100_000],
)
def test_value_that_is_not_json_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        redacted(value, [("a",)])


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b"])
def test_field_with_an_empty_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="empty name"):
        parse_field(text)
