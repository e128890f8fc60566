"""Reads `server.properties` files, and joins the layers of a broker's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from isotherm.config.definition import LIST
from isotherm.config.process_roles import COMBINED, CONTROLLER
from isotherm.errors import ConfigError

# What Java's String.trim removes.
_TRIMMED = "".join(map(chr, range(ord(" ") + 1)))
_ENVIRONMENT_PREFIX = "KAFKA_"
_BITNAMI_PREFIX = "KAFKA_CFG_"


def parse_properties(text: str) -> dict[str, str]:
    """The entries of a text in the format of Java's properties. Values are trimmed, as in Kafka.

    Raises ConfigError for `\\u` without four digits.
    """
    import javaproperties  # here, so that commands without a file do not load it

    try:
        entries = javaproperties.loads(text)
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(
            f"no character: four hexadecimal digits belong here text={error.escape!r}"
        ) from error
    return {name: value.strip(_TRIMMED) for name, value in entries.items()}


def read_properties(path: Path) -> dict[str, str]:
    """The entries of a file. Raises ConfigError, which names the file, if it cannot be read."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file path={path} reason={error.strerror!r}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read the configuration file path={path} reason='not UTF-8: byte {error.start}'"
        ) from None


def environment_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys in KAFKA_* variables: `_` is a dot, `__` an underscore, `___` a dash.

    Bitnami's images use KAFKA_CFG_* for keys. These override the others.
    """
    kafkas: dict[str, str] = {}
    bitnamis: dict[str, str] = {}
    for name, value in environment.items():
        if name.startswith(_BITNAMI_PREFIX):
            bitnamis[_environment_key(name.removeprefix(_BITNAMI_PREFIX))] = value
        elif name.startswith(_ENVIRONMENT_PREFIX) and name not in _NOT_KEYS:
            kafkas[_environment_key(name.removeprefix(_ENVIRONMENT_PREFIX))] = value
    return kafkas | bitnamis


# Variables of Kafka's own scripts and images that have the prefix, but are not keys. Source:
# KafkaDockerWrapper.ExcludeServerPropsEnv; bin/kafka-run-class.sh; Bitnami's libkafka.sh.
_NOT_KEYS = frozenset(
    {"KAFKA_OPTS", "KAFKA_HEAP_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_GC_LOG_OPTS"}
    | {"KAFKA_LOG4J_OPTS", "KAFKA_LOG4J_ROOT_LOGLEVEL", "KAFKA_LOG4J_LOGGERS"}
    | {"KAFKA_TOOLS_LOG4J_LOGLEVEL", "KAFKA_JMX_OPTS", "KAFKA_JMX_HOSTNAME", "KAFKA_JMX_PORT"}
    | {"KAFKA_HOME", "KAFKA_VERSION", "KAFKA_DEBUG", "KAFKA_KRAFT_CLUSTER_ID", "KAFKA_ENABLE_KRAFT"}
)


def _environment_key(name: str) -> str:
    marks = {"___": "-", "__": "_", "_": "."}
    return re.sub(r"___|__|_", lambda match: marks[match[0]], name.lower())


def parse_override(text: str) -> tuple[str, str]:
    """Split `key=value`. Raises ConfigError if there is no `=`."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise ConfigError(f"not of the form KEY=VALUE text={text!r}")
    return name.strip(), value.strip()


class Setting(NamedTuple):
    """A value, and the name of its layer."""

    value: str
    source: str


def layer_settings(layers: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, Setting]:
    """Join layers of settings. A later layer overrides an earlier one."""
    joined: dict[str, Setting] = {}
    for source, texts in layers:
        for name, value in texts.items():
            joined[name] = Setting(value, source)
    return joined


def embedded_defaults(data_dir: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The lowest layer of `isotherm serve`, with both tiers in one folder. A file, the environment
    or an override may replace each value. `given` has the keys of these upper layers: a broker that
    is a cluster of its own forms groups at once, as with Kafka's own server.properties."""
    root = data_dir.absolute()
    roles = LIST.parse(given.get("process.roles", ",".join(COMBINED)))
    at_once = {"group.initial.rebalance.delay.ms": "0"} if CONTROLLER in roles else {}
    return {
        **at_once,
        # log.dirs would override a log.dir in the file.
        "log.dir": str(root / "log"),
        "remote.log.storage.system.enable": "true",
        "rsm.config.url": (root / "bucket").as_uri(),
    }
