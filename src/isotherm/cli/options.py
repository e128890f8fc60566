"""Options that several commands share, each described once."""

from __future__ import annotations

from typing import Annotated

import typer

from isotherm.config.layers import parse_override

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
        help="A librdkafka property, such as security.protocol=SSL. May be given many times.",
    ),
]

DEFAULT_BOOTSTRAP_SERVER = "localhost:9092"


def parse_pairs(pairs: list[str] | None) -> dict[str, str]:
    """`key=value` options as a mapping; ConfigError for one without `=`."""
    return dict(parse_override(pair) for pair in pairs or [])
