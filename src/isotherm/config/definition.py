"""Declares configuration keys, each once.

A group of keys is a frozen dataclass whose fields are made by `key`. The field's name is the Kafka
key with underscores for dots: `segment_bytes` is `segment.bytes`. The field's metadata has type,
default, check and documentation. Parsing, DescribeConfigs, the command line's help and
docs/configuration.md all use these declarations.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from isotherm.errors import ConfigError, UnknownConfigError

T = TypeVar("T")
Config = TypeVar("Config")

_METADATA_KEY = "isotherm.config"
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConfigType(Generic[T]):
    """Converts the text of a value to the value, and back. `name` is Kafka's name of the type."""

    name: str
    parse: Callable[[str], T]
    format: Callable[[T], str]


# As Java reads numbers: without the underscores and the digits of other scripts that Python takes.
_INTEGER = re.compile(r"[+-]?0*[0-9]{1,19}")
_FLOAT = re.compile(
    r"([+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))[fFdD]?"
)


def _parse_bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError("Expected value to be either true or false")
    return lowered == "true"


def _bounded_int(type_name: str, low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = _INTEGER.fullmatch(text.strip())
        if digits is None or not low <= int(digits[0]) <= high:
            raise ValueError(f"Not a number of type {type_name}")
        return int(digits[0])

    return parse


def _parse_double(text: str) -> float:
    number = _FLOAT.fullmatch(text.strip())
    if number is None:
        raise ValueError("Not a number of type DOUBLE")
    return float(number[1])


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def _parse_distinct(text: str) -> tuple[str, ...]:
    items = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(items):
        raise ValueError("values must not be empty")
    return items


STRING: ConfigType[str] = ConfigType("STRING", str.strip, str)
BOOLEAN: ConfigType[bool] = ConfigType("BOOLEAN", _parse_bool, lambda value: str(value).lower())
SHORT: ConfigType[int] = ConfigType("SHORT", _bounded_int("SHORT", -(2**15), 2**15 - 1), str)
INT: ConfigType[int] = ConfigType("INT", _bounded_int("INT", -(2**31), INT_MAX), str)
LONG: ConfigType[int] = ConfigType("LONG", _bounded_int("LONG", -(2**63), LONG_MAX), str)
DOUBLE: ConfigType[float] = ConfigType(
    "DOUBLE",
    _parse_double,
    lambda value: repr(value).replace("e+", "E"),  # as Java writes it
)
# The text of a value is never shown.
PASSWORD: ConfigType[str] = ConfigType("PASSWORD", str, lambda value: "[hidden]")
LIST: ConfigType[tuple[str, ...]] = ConfigType("LIST", _parse_list, ",".join)
# As in Kafka, the second of two equal values is dropped. An empty value or list is refused.
DISTINCT_LIST: ConfigType[tuple[str, ...]] = ConfigType("LIST", _parse_distinct, ",".join)


def optional(inner: ConfigType[T]) -> ConfigType[T | None]:
    """The same type with None, which means that the key is not set. No text is parsed to None."""
    return ConfigType(
        inner.name, inner.parse, lambda value: "" if value is None else inner.format(value)
    )


@dataclass(frozen=True, slots=True)
class Check:
    """A rule for a value, and the words that describe it in errors and docs. `why_not` makes
    Kafka's words of a value that breaks the rule, where Kafka has the rule too."""

    holds: Callable[[Any], bool]
    words: str
    why_not: Callable[[Any], str] | None = None

    def refusal(self, value: Any) -> str:
        return f"Value must be {self.words}" if self.why_not is None else self.why_not(value)


def at_least(low: float) -> Check:
    return Check(lambda value: value is None or value >= low, f"at least {low}")


def at_least_or_negative(low: float) -> Check:
    """For keys with which Kafka takes any negative number for no limit."""
    return Check(lambda value: value < 0 or value >= low, f"at least {low}, or negative")


def between(low: float, high: float) -> Check:
    return Check(
        lambda value: value is None or low <= value <= high,
        f"from {low} to {high}",
        lambda value: (
            f"Value must be at least {low}" if value < low else f"Value must be no more than {high}"
        ),
    )


def one_of(*allowed: str) -> Check:
    words = ", ".join(allowed)
    return Check(
        lambda value: value in allowed,
        "one of " + words,
        lambda value: "String must be one of: " + words,
    )


def any_of(*allowed: str) -> Check:
    words = ", ".join(allowed)
    return Check(
        lambda value: set(value) <= set(allowed),
        "any of " + words,
        lambda value: "String must be one of: " + words,
    )


ANYTHING = Check(lambda value: True, "")


@dataclass(frozen=True, slots=True)
class Synonym:
    """Another key that sets the same value at broker level, perhaps in a larger unit, or as another
    type."""

    name: str
    multiplier: int = 1
    type: ConfigType[Any] | None = None


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The declaration of one key.

    A `dynamic` key can be changed while the broker runs. `internal` keys are for tests, and are
    left out of the documentation. `no_effect` is the reason why an accepted key changes nothing; a
    broker that sets the key logs it as a warning. A `thread_pool` key is the size of a pool, which
    one change may at most halve or double while the broker runs.
    """

    name: str
    type: ConfigType[Any]
    default: Any
    check: Check
    documentation: str
    dynamic: bool
    internal: bool
    synonyms: tuple[Synonym, ...]
    no_effect: str | None = None
    thread_pool: bool = False

    def parse(self, text: str) -> Any:
        """Raises ConfigError in Kafka's words, which its users and their tools know
        (ConfigException).
        """
        try:
            value = self.type.parse(text)
        except ValueError as error:
            raise self._refusal(text, str(error)) from error
        if not self.check.holds(value):
            raise self._refusal(self.format(value), self.check.refusal(value))
        return value

    def under(self, synonym: Synonym) -> ConfigKey:
        """The key as it is set by that synonym, in the synonym's unit."""
        return dataclasses.replace(self, name=synonym.name, type=synonym.type or self.type)

    def _refusal(self, text: str, reason: str) -> ConfigError:
        shown = self.format(text) if self.type.name == PASSWORD.name else text
        return ConfigError(f"Invalid value {shown} for configuration {self.name}: {reason}")

    def format(self, value: Any) -> str:
        return self.type.format(value)


def key(
    value_type: ConfigType[T],
    default: T,
    documentation: str,
    *,
    check: Check = ANYTHING,
    dynamic: bool = False,
    internal: bool = False,
    name: str | None = None,
    synonyms: Iterable[Synonym | str] = (),
    no_effect: str | None = None,
    thread_pool: bool = False,
) -> T:
    """Declare a key as a field of a config dataclass, as the module's docstring explains."""
    settled = tuple(
        synonym if isinstance(synonym, Synonym) else Synonym(synonym) for synonym in synonyms
    )
    declared = (
        name, value_type, default, check, documentation, dynamic, internal, settled, no_effect,
        thread_pool,
    )  # fmt: skip
    metadata = {_METADATA_KEY: declared}
    field: T = dataclasses.field(default=default, metadata=metadata)
    return field


def config_keys(config_class: type) -> dict[str, tuple[str, ConfigKey]]:
    """All keys of a config dataclass, in declaration order: key name -> (field name, key)."""
    keys: dict[str, tuple[str, ConfigKey]] = {}
    for field in dataclasses.fields(config_class):
        declared = field.metadata.get(_METADATA_KEY)
        if declared is not None:
            name = declared[0] or field.name.replace("_", ".")
            keys[name] = (field.name, ConfigKey(name, *declared[1:]))
    return keys


def parse_fields(config_class: type, texts: Mapping[str, str]) -> dict[str, Any]:
    """The field values for the keys in `texts`. Raises UnknownConfigError for an undeclared key."""
    keys = config_keys(config_class)
    fields: dict[str, Any] = {}
    for name, text in texts.items():
        if name not in keys:
            raise unknown_key(name, keys)
        field_name, declared = keys[name]
        fields[field_name] = declared.parse(text)
    return fields


def split_understood(
    config_class: type, texts: Mapping[str, str]
) -> tuple[dict[str, str], list[ConfigError]]:
    """The texts that `parse_fields` takes, and the errors of the others."""
    keys = config_keys(config_class)
    understood, errors = {}, []
    for name, text in texts.items():
        try:
            if name not in keys:
                raise unknown_key(name, keys)
            keys[name][1].parse(text)
        except ConfigError as error:
            errors.append(error)
        else:
            understood[name] = text
    return understood, errors


def unknown_key(name: str, names: Iterable[str]) -> UnknownConfigError:
    """The error for an undeclared key. It names the most similar declared key."""
    nearest = nearest_key(name, names)
    hint = f" nearest={nearest}" if nearest else ""
    return UnknownConfigError(f"unknown configuration key key={name}{hint}")


def nearest_key(name: str, names: Iterable[str]) -> str | None:
    """The key in `names` that is most similar to `name`. None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)), None)


def format_fields(config: object) -> dict[str, str]:
    """The texts of all keys of a config dataclass's instance. Keys that are None are left out."""
    return {
        name: declared.format(getattr(config, field_name))
        for name, (field_name, declared) in config_keys(type(config)).items()
        if getattr(config, field_name) is not None
    }
