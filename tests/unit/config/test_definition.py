"""Configuration classes: the key and type of a field, and errors that name key and rule."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from isotherm.config.definition import (
    BOOLEAN,
    INT,
    LIST,
    at_least,
    config_keys,
    format_fields,
    key,
    one_of,
    optional,
    parse_fields,
)
from isotherm.errors import ConfigError, UnknownConfigError


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A configuration class with a key of each kind."""

    cache_size_bytes: int = key(INT, 10, "Size.", check=at_least(1))
    fast_mode: bool = key(BOOLEAN, False, "Fast.", dynamic=True)
    names: tuple[str, ...] = key(LIST, (), "Names.")
    level: str = key(LIST, "a", "Level.", check=one_of("a", "b"), name="odd-name")
    hidden: int | None = key(optional(INT), None, "Hidden.", internal=True)


def test_key_name_is_the_field_with_dots() -> None:
    assert list(config_keys(Sample)) == [
        "cache.size.bytes",
        "fast.mode",
        "names",
        "odd-name",
        "hidden",
    ]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("cache.size.bytes", " 12 ", {"cache_size_bytes": 12}),
        ("fast.mode", "TRUE", {"fast_mode": True}),
        ("names", "a, b,,c", {"names": ("a", "b", "c")}),
    ],
)
def test_parse_reads_the_text_of_each_type(
    name: str, text: str, expected: dict[str, object]
) -> None:
    assert parse_fields(Sample, {name: text}) == expected


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("cache.size.bytes", "0", "at least 1"),
        ("cache.size.bytes", "ten", "type=INT"),
        ("cache.size.bytes", str(2**31), "a number from"),
        ("fast.mode", "yes", "true or false"),
    ],
)
def test_parse_refuses_a_bad_value_naming_key_and_rule(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_fields(Sample, {name: text})
    assert f"key={name}" in str(caught.value)
    assert text in str(caught.value)


def test_parse_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UnknownConfigError, match=r"key=cache\.size\.byte nearest=cache\.size"):
        parse_fields(Sample, {"cache.size.byte": "1"})


def test_format_leaves_out_keys_that_are_not_set() -> None:
    texts = format_fields(Sample(fast_mode=True, names=("a", "b")))
    assert texts["fast.mode"] == "true"
    assert texts["names"] == "a,b"
    assert "hidden" not in texts
