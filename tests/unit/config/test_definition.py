"""Configuration classes: the key and type of a field, and errors that name key and rule."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from isotherm.config.cleaner import CleanerConfig
from isotherm.config.definition import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    PASSWORD,
    Check,
    ConfigKey,
    any_of,
    at_least,
    between,
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
        ("cache.size.bytes", "0", "Value must be at least 1"),
        ("cache.size.bytes", "ten", "Not a number of type INT"),
        ("cache.size.bytes", "1_0", "Not a number of type INT"),
        ("cache.size.bytes", "\u0661", "Not a number of type INT"),
        ("cache.size.bytes", "1.0", "Not a number of type INT"),
        ("cache.size.bytes", "9" * 5000, "Not a number of type INT"),
        ("cache.size.bytes", str(2**31), "Not a number of type INT"),
        ("fast.mode", "yes", "Expected value to be either true or false"),
    ],
)
def test_parse_refuses_a_bad_value_naming_key_and_rule(name: str, text: str, words: str) -> None:
    """In the words of Kafka's ConfigException, and never in those of Python."""
    with pytest.raises(ConfigError) as caught:
        parse_fields(Sample, {name: text})
    assert str(caught.value) == f"Invalid value {text} for configuration {name}: {words}"


@pytest.mark.parametrize("text", ["half", "0_5", "inf", "nan", "1e", "", "0x1p3 "])
def test_double_is_what_java_reads(text: str) -> None:
    with pytest.raises(ConfigError, match="Not a number of type DOUBLE"):
        config_keys(CleanerConfig)["log.cleaner.io.buffer.load.factor"][1].parse(text)
    assert [DOUBLE.parse(each) for each in (" .5", "+1.e1d", "2f")] == [0.5, 10.0, 2.0]


@pytest.mark.parametrize(
    ("rule", "value", "words"),
    [
        (between(1, 5), 0, "Value must be at least 1"),
        (between(1, 5), 6, "Value must be no more than 5"),
        (one_of("a", "b"), "c", "String must be one of: a, b"),
        (any_of("a", "b"), ("a", "c"), "String must be one of: a, b"),
        (Check(bool, "not empty"), "", "Value must be not empty"),
    ],
)
def test_rule_refuses_in_kafkas_words(rule: Check, value: object, words: str) -> None:
    assert not rule.holds(value)
    assert rule.refusal(value) == words


def test_no_check_of_a_password_shows_it() -> None:
    secret = ConfigKey(
        "some.password",
        PASSWORD,
        None,
        one_of("right"),
        "",
        dynamic=False,
        internal=False,
        synonyms=(),
    )
    with pytest.raises(ConfigError) as caught:
        secret.parse("hunter2")
    assert "hunter2" not in str(caught.value)


def test_parse_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UnknownConfigError, match=r"key=cache\.size\.byte nearest=cache\.size"):
        parse_fields(Sample, {"cache.size.byte": "1"})


def test_format_leaves_out_keys_that_are_not_set() -> None:
    texts = format_fields(Sample(fast_mode=True, names=("a", "b")))
    assert texts["fast.mode"] == "true"
    assert texts["names"] == "a,b"
    assert "hidden" not in texts
