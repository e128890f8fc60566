"""Reading `server.properties` files, and the layers a broker's configuration is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from isotherm.errors import ConfigError

_TRIMMED = "".join(map(chr, range(ord(" ") + 1)))
_ENVIRONMENT_PREFIX = "KAFKA_"
_BITNAMI_PREFIX = "KAFKA_CFG_"


def parse_properties(text: str) -> dict[str, str]:
    """The entries of a text in the format of Java's properties. Kafka trims values, and so does this.

    Raises ConfigError for `\\u` without four digits.
    """
    import javaproperties  # not above: a command without a file does without

    try:
        entries = javaproperties.loads(text)
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(
            f"no character: four hexadecimal digits belong here text={error.escape!r}"
        ) from error
    return {name: value.strip(_TRIMMED) for name, value in entries.items()}


def read_properties(path: Path) -> dict[str, str]:
    """ConfigError naming the file when it cannot be read."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file path={path}") from error


def environment_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """KAFKA_* variables as keys: `_` is a dot, `__` an underscore, `___` a dash.

    Bitnami's images write KAFKA_CFG_* for keys; these win over the others.
    """
    kafkas: dict[str, str] = {}
    bitnamis: dict[str, str] = {}
    for name, value in environment.items():
        if name.startswith(_BITNAMI_PREFIX):
            bitnamis[_environment_key(name.removeprefix(_BITNAMI_PREFIX))] = value
        elif name.startswith(_ENVIRONMENT_PREFIX) and name not in _NOT_KEYS:
            kafkas[_environment_key(name.removeprefix(_ENVIRONMENT_PREFIX))] = value
    return kafkas | bitnamis


# Variables of Kafka's own scripts and images that share the prefix and are no keys. Source:
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
    """`key=value`; ConfigError when there is no `=`."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise ConfigError(f"an override is written key=value text={text!r}")
    return name.strip(), value.strip()


class Setting(NamedTuple):
    """A value and the layer it came from."""

    value: str
    source: str


def layer_settings(layers: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, Setting]:
    """Join layers of settings, the later one winning; each value keeps its layer's name."""
    joined: dict[str, Setting] = {}
    for source, texts in layers:
        for name, value in texts.items():
            joined[name] = Setting(value, source)
    return joined


def embedded_defaults(data_dir: Path) -> dict[str, str]:
    """What `isotherm serve` starts from: one folder holds both tiers.

    The lowest layer: a file, the environment or an override replaces any of it.
    """
    root = data_dir.absolute()
    return {
        # Not log.dirs: that would win over a file's log.dir.
        "log.dir": str(root / "log"),
        "remote.log.storage.system.enable": "true",
        "rsm.config.url": (root / "bucket").as_uri(),
    }
