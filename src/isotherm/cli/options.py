"""Options that several commands share, each described once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from isotherm.config.client_security import (
    ClientProperties as Properties,
)
from isotherm.config.client_security import librdkafka_properties, read_client_properties
from isotherm.config.layers import parse_override
from isotherm.errors import ConfigError

BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="ISOTHERM_BOOTSTRAP_SERVER",
        metavar="HOST:PORT",
        help="A broker to connect to: Isotherm's or any Kafka cluster's.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line instead of a table.")
]
ClientProperties = Annotated[
    list[str] | None,
    typer.Option(
        "--client-property",
        "-X",
        metavar="KEY=VALUE",
        help="A property of the client, Kafka's or librdkafka's, such as client.id=me. May be"
        " given many times. Passwords belong in --command-config: other users can see a command"
        " line.",
    ),
]

CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        dir_okay=False,
        help="A file of client properties as Kafka's tools take it: security.protocol, sasl.*,"
        " ssl.*. -X overrides it.",
    ),
]

Registry = Annotated[
    str | None,
    typer.Option("--registry", metavar="URL", help="A schema registry with Confluent's API."),
]
RegistryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--registry-option",
        metavar="KEY=VALUE",
        help="A setting of confluent-kafka's SchemaRegistryClient, such as ssl.ca.location=ca.pem"
        " or basic.auth.user.info=USER:PASSWORD. May be given many times.",
    ),
]

# Client properties of librdkafka that name a file, or a folder of certificates.
_FILE_NAMES = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
)
_SYSTEM_TRUST = "probe"

DEFAULT_BOOTSTRAP_SERVER = "localhost:9092"


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a command's clients reach the brokers."""

    client_property: ClientProperties = None
    command_config: CommandConfig = None

    @property
    def properties(self) -> Properties:
        """See `client_settings`."""
        return client_settings(self.command_config, self.client_property)


def parse_pairs(pairs: list[str] | None) -> dict[str, str]:
    """The mapping of `key=value` options. Raises ConfigError for an option without `=`."""
    return dict(parse_override(pair) for pair in pairs or [])


def client_settings(command_config: Path | None, pairs: list[str] | None) -> Properties:
    """The properties of `--command-config` and `--client-property`, under the names that were
    given.

    The brokers are those of the command line, as with Kafka's tools. Raises ConfigError, which
    names key and file, for an unknown key, a contradiction, or a key store that cannot be used.
    """
    given = parse_pairs(pairs)
    if command_config is None and not given:
        return Properties({})
    of_file = {} if command_config is None else read_client_properties(command_config)
    of_file.pop("bootstrap.servers", None)
    places = [] if command_config is None else [f"file={command_config}"]
    if given:
        places = [*places, "option=-X"]
    properties = Properties({**of_file, **given}, " ".join(places))
    _check_names(properties)
    return properties


def _check_names(properties: Properties) -> None:
    from confluent_kafka import Consumer, KafkaException

    translated = librdkafka_properties(properties)
    for name in _FILE_NAMES:
        # librdkafka's own message has OpenSSL's words, and not the name of the file.
        path = str(translated.get(name, ""))
        if path not in ("", _SYSTEM_TRUST) and not Path(path).exists():
            raise ConfigError(f"there is no such file path={path} key={name} {properties.place}")
    translated.pop("bootstrap.servers", None)
    try:
        # A client without brokers connects to nothing, but checks its properties.
        Consumer({"group.id": "isotherm-cli", **translated, "log_level": 0}).close()
    except KafkaException as error:
        raise ConfigError(
            f"the client refuses a property {properties.place}"
            f" reason={error.args[0].str().strip()!r}"
        ) from None
