"""Which expressions of `subscribePattern` are read, and what they find. tests/spark/test_drop_in.py
compares with Java."""

from __future__ import annotations

import re

import pytest

from isotherm.errors import ConfigError
from isotherm.spark.topic_pattern import topic_pattern

NAMES = ("orders", "orders-eu", "eu-orders-2", "other", "ORDERS", "a.b", "axb")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("orders", ["orders", "orders-eu", "eu-orders-2"]),
        ("^orders", ["orders", "orders-eu"]),
        ("rders-", ["orders-eu", "eu-orders-2"]),
        ("^orders$", ["orders"]),
        (r"\Aorders\Z", ["orders"]),
        ("orders|^other", ["orders", "orders-eu", "eu-orders-2", "other"]),
        ("(?i)^orders$", ["orders", "ORDERS"]),
        ("^(?i:ord)ers", ["orders", "orders-eu"]),
        (r"\Qa.b\E", ["a.b"]),
        (r"^\Qa.", ["a.b"]),
        (r"^a\.b$", ["a.b"]),
        ("^a.b$", ["a.b", "axb"]),
        (r"^[\w.]+$", ["orders", "other", "ORDERS", "a.b", "axb"]),
        (r"\d", ["eu-orders-2"]),
        (r"^o(?!r)", ["other"]),
        (r"(?<=eu)-", ["eu-orders-2"]),
        (r"^\x61\u0078", ["axb"]),
        ("^[^o-]{3}$", ["a.b", "axb"]),
        ("^o?+ther", ["other"]),
        # Java's (?i) is of ASCII letters: a Kelvin sign is no k, and a long s no s.
        ("(?i)order\u017f", []),
        ("", list(NAMES)),
    ],
)
def test_expression_is_found_in_names(text: str, found: list[str]) -> None:
    assert [name for name in NAMES if topic_pattern(text).selects(name)] == found


@pytest.mark.parametrize(
    ("text", "position"),
    [
        # Java reads these otherwise than Python.
        ("[a-z&&[^b]]", 0),
        ("x[a[bc]]", 1),
        ("[a&&b]", 0),
        ("[a||b]", 0),
        ("[+--]", 0),
        ("[]a]", 0),
        ("[^]a]", 0),
        (r"[\b]", 0),
        (r"a\v", 1),
        (r"(a)\10", 3),
        (r"\012", 0),
        ("a{,2}", 1),
        ("a{x}", 1),
        ("(?x)a b", 0),
        ("a}", 1),
        # Only one of the two reads these.
        ("a(?i)b", 1),
        ("(?u)a", 0),
        ("(?P<n>a)", 0),
        ("(?<n>a)", 0),
        ("(?#c)a", 0),
        ("(a)(?(1)b|c)", 3),
        (r"\p{Alpha}", 0),
        (r"a\z", 1),
        (r"\h", 0),
        (r"\N{DIGIT ONE}", 0),
        # Neither.
        ("a[", 1),
        ("a\\", 1),
        ("abcdefghijklm[nopqrstuvwxyz", 13),
    ],
)
def test_syntax_of_another_meaning_is_refused_by_its_place(text: str, position: int) -> None:
    shown = f"position={position} found={text[position : position + 12]!r}"
    with pytest.raises(ConfigError, match="option=subscribePattern") as raised:
        topic_pattern(text)
    assert f"{shown} hint=" in str(raised.value)


@pytest.mark.parametrize(
    "text", ["a(", "a)", "*a", "a**", "a{2,1}", r"(?<=a*)b", r"\2(a)(b)", "^*"]
)
def test_expression_that_python_cannot_read_is_refused_with_its_reason(text: str) -> None:
    with pytest.raises(ConfigError, match=f"value={re.escape(repr(text))} reason="):
        topic_pattern(text)
