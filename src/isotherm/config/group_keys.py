"""Keys that a group may set within the bounds of the broker's.

`share.session.timeout.ms` of a group has the default `group.share.session.timeout.ms`, and the
bounds `group.share.min.session.timeout.ms` and `group.share.max.session.timeout.ms`.

Source: Kafka GroupConfig.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from isotherm.config.definition import INT, Check, config_keys, key
from isotherm.errors import ConfigError

KINDS = ("consumer", "share", "streams")
_ASSIGNMENT_INTERVAL = ".assignment.interval.ms"
# The broker's keys with limits that can be changed while it runs.
ASSIGNMENT_INTERVALS = tuple(f"group.{kind}{_ASSIGNMENT_INTERVAL}" for kind in KINDS)
# The one bound whose name does not follow from that of the key.
_BOUNDS = {"group.streams.max.num.standby.replicas": "group.streams.max.standby.replicas"}


def upper_bound(documentation: str) -> str:
    """The documentation of the upper bound of a key."""
    return f"Upper bound of a group's value: {documentation[0].lower()}{documentation[1:]}"


def lower_bound(documentation: str) -> str:
    """The documentation of the lower bound of a key."""
    return f"Lower bound of a group's value: {documentation[0].lower()}{documentation[1:]}"


def of_one_group(broker_class: type[Any], name: str, check: Check) -> int:
    """The key of one group whose value is that of the broker's key `name` unless it is set."""
    broker = config_keys(broker_class)[name][1]
    return key(
        INT,
        int(broker.default),
        broker.documentation,
        check=check,
        synonyms=[name],
        no_effect=broker.no_effect,
    )


def defaults_of(level_class: type[Any], broker: object) -> dict[str, Any]:
    """The values of a group that sets none, by field. As in Kafka, its assignment interval is shown
    as Kafka's default."""
    return {
        field_name: getattr(broker, _field_name(broker_name))
        for name, field_name, broker_name in _bounded_keys(level_class)
        if not name.endswith(_ASSIGNMENT_INTERVAL)
    }


def check_bounds(level: object, broker: object, texts: Mapping[str, str]) -> None:
    """Raise ConfigError, with Kafka's message, for a value of a group outside the broker's limits.
    `texts` are those that the group sets."""
    for name, field_name, broker_name in _bounded_keys(type(level)):
        if name.endswith(_ASSIGNMENT_INTERVAL) and name not in texts:
            continue
        _check(name, getattr(level, field_name), broker_name, broker)


def bounded_fields(level: object, broker: object, texts: Mapping[str, str]) -> dict[str, Any]:
    """The values that lie outside the broker's limits, by field, as the limits that they are moved
    to. `texts` are those that the group sets."""
    moved = {}
    for name, field_name, broker_name in _bounded_keys(type(level)):
        if name not in texts:
            continue
        value = getattr(level, field_name)
        bounded = within_limits(broker_name, value, broker)
        if bounded != value:
            moved[field_name] = bounded
    return moved


def within_limits(broker_name: str, value: int, broker: object) -> int:
    """The value of the broker's key, or of a group's in its place, moved to the broker's limits."""
    low, high = (_limit(broker_name, bound, broker)[1] for bound in ("min", "max"))
    if low is not None:
        value = max(value, low)
    return value if high is None else min(value, high)


def check_broker_keys(broker: object) -> None:
    """Raise ConfigError for keys of the broker that do not fit together: a default of groups
    outside the bounds that it sets for them, and a heartbeat that comes after its session's end.
    """
    values = {
        name: getattr(broker, field) for name, (field, _) in config_keys(type(broker)).items()
    }
    for name, low in values.items():
        kind, minimum, rest = name.removeprefix("group.").partition(".min.")
        if not minimum or kind not in KINDS:
            continue
        value, high = values[f"group.{kind}.{rest}"], values[f"group.{kind}.max.{rest}"]
        if not low <= value <= high:
            raise ConfigError(
                f"group.{kind}.{rest} must be between group.{kind}.min.{rest} and"
                f" group.{kind}.max.{rest} value={value} min={low} max={high}"
            )
    for kind in KINDS:
        interval_ms = values[f"group.{kind}.heartbeat.interval.ms"]
        timeout_ms = values[f"group.{kind}.session.timeout.ms"]
        if interval_ms >= timeout_ms:
            raise ConfigError(
                f"group.{kind}.heartbeat.interval.ms must be less than"
                f" group.{kind}.session.timeout.ms interval={interval_ms} timeout={timeout_ms}"
            )


def _bounded_keys(level_class: type[Any]) -> Iterator[tuple[str, str, str]]:
    """The group's key, its field, and the broker's key."""
    for name, (field_name, declared) in config_keys(level_class).items():
        for synonym in declared.synonyms:
            yield name, field_name, synonym.name


def _check(name: str, value: int, broker_name: str, broker: object) -> None:
    for bound, words in (("min", "greater"), ("max", "less")):
        bound_name, limit = _limit(broker_name, bound, broker)
        if limit is not None and (value < limit if bound == "min" else value > limit):
            raise ConfigError(f"{name} must be {words} than or equal to {bound_name}")


def _limit(broker_name: str, bound: str, broker: object) -> tuple[str, int | None]:
    """The broker's key of a limit, and its value; None if there is no such limit."""
    group, kind, rest = broker_name.split(".", 2)
    name = f"{group}.{kind}.{bound}.{rest}"
    name = _BOUNDS.get(name, name)
    return name, getattr(broker, _field_name(name), None)


def _field_name(name: str) -> str:
    return name.replace(".", "_")
