"""`isotherm config`: every configuration key, read from its declaration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from isotherm.broker.apis.api_register import served_table
from isotherm.cli.options import AsJson
from isotherm.cli.output import print_rows
from isotherm.config.broker import BrokerConfig
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.definition import ConfigKey, config_keys
from isotherm.config.groups import GroupConfig
from isotherm.config.inert import InertConfig
from isotherm.config.quorum import QuorumConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.replication import ReplicationConfig
from isotherm.config.security import SecurityConfig
from isotherm.config.topic import TopicConfig
from isotherm.config.transactions import TransactionConfig
from isotherm.remote.metadata.settings import TopicBasedSettings
from isotherm.remote.storage.settings import ObjectStoreSettings

app = typer.Typer(no_args_is_help=True, help="Show the configuration keys and the served APIs.")

_GROUPS: list[tuple[str, str, type]] = [
    ("broker", "Broker", BrokerConfig),
    ("remote", "Remote tier (broker level)", RemoteLogManagerConfig),
    ("groups", "Consumer groups (broker level)", GroupConfig),
    ("transactions", "Transactions (broker level)", TransactionConfig),
    ("replication", "Replication (broker level)", ReplicationConfig),
    ("cleaner", "Log cleaner (broker level)", CleanerConfig),
    ("quorum", "Membership in a cluster of Kafka controllers (broker level)", QuorumConfig),
    ("security", "Security (broker level)", SecurityConfig),
    ("inert", "Accepted without effect (broker level)", InertConfig),
    ("topic", "Topic", TopicConfig),
    (
        "rsm",
        "Object store (`rsm.config.` on a broker, options without it in Spark)",
        ObjectStoreSettings,
    ),
    ("rlmm", "Metadata manager (`rlmm.config.` on a broker)", TopicBasedSettings),
]


@app.command(name="list")
def list_keys(
    scope: Annotated[
        str | None,
        typer.Argument(
            help="broker, remote, groups, transactions, cleaner, quorum, security, inert, topic,"
            " rsm or rlmm; all if not given."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the keys with type, default and meaning."""
    rows = [row for row in _rows() if scope in (None, row["scope"])]
    print_rows(["scope", "key", "type", "default", "documentation"], rows, as_json=as_json)


@app.command()
def docs() -> None:
    """Print docs/configuration.md."""
    typer.echo(configuration_page(), nl=False)


@app.command()
def apis(as_json: AsJson = False) -> None:
    """List the requests a broker answers, with the versions of each."""
    rows = [{"key": key, "api": name, "versions": text} for key, name, text in served_table()]
    print_rows(["key", "api", "versions"], rows, as_json=as_json)


def configuration_page() -> str:
    """The text of docs/configuration.md, generated from the declarations."""
    lines = [
        "# Configuration",
        "",
        "Made by `isotherm config docs`; do not edit. Keys, types, defaults and rules stand once,",
        "in `src/isotherm/config/`. Broker keys go into `server.properties` or `--override`; a",
        "topic key's default for the whole broker is set by the broker key in its last column.",
    ]
    for scope, title, _ in _GROUPS:
        lines += ["", f"## {title}", "", "| key | type | default | rule | meaning | also set by |"]
        lines.append("|---|---|---|---|---|---|")
        for row in _rows():
            if row["scope"] == scope:
                cells = ["key", "type", "default", "rule", "documentation", "synonyms"]
                lines.append("| " + " | ".join(_escape(row[cell]) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _rows() -> Iterator[dict[str, Any]]:
    for scope, _, config_class in _GROUPS:
        # Keys with an effect first.
        for name, (_, declared) in sorted(
            config_keys(config_class).items(), key=lambda item: item[1][1].no_effect is not None
        ):
            if not declared.internal:
                default = "" if declared.default is None else declared.format(declared.default)
                yield {
                    "scope": scope,
                    "key": name,
                    "type": declared.type.name.lower(),
                    "default": default,
                    "rule": declared.check.words,
                    "documentation": _meaning(declared),
                    "synonyms": ", ".join(synonym.name for synonym in declared.synonyms),
                }


def _meaning(declared: ConfigKey) -> str:
    sentences = [declared.documentation]
    if declared.thread_pool:
        sentences.append("While running it is at most halved or doubled at a time.")
    if declared.no_effect is not None:
        sentences.append(f"No effect: {declared.no_effect}.")
    return " ".join(sentences)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
