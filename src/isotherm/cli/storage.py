"""`isotherm storage`: formats a broker's log directories, like kafka-storage.sh."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import typer

from isotherm.config.broker import BrokerConfig
from isotherm.config.layers import read_properties
from isotherm.config.secret_files import closed_to_others
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import LogDirFailedError

app = typer.Typer(no_args_is_help=True, help="Format a broker's log directories for a cluster.")


_NO_CONTROLLER = (
    "--add-scram has no effect: process.roles is broker, and only a controller begins a cluster's"
    " metadata. Give it to kafka-storage.sh where the controllers are formatted, or use"
    " kafka-configs.sh on the running cluster."
)
_NOT_NEW = (
    "--add-scram has no effect: the metadata directory {} was formatted before. Use"
    " kafka-configs.sh on the running cluster."
)

_ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="A server.properties file.")
]


@app.command(name="format")
def format_storage(
    config: _ConfigFile,
    cluster_id: Annotated[
        str,
        typer.Option(
            "--cluster-id",
            "-t",
            help="The cluster's id: that of the controllers, if they are elsewhere.",
        ),
    ],
    ignore_formatted: Annotated[
        bool,
        typer.Option(
            "--ignore-formatted", "-g", help="Skip directories that are already formatted."
        ),
    ] = False,
    add_scram: Annotated[
        list[str] | None,
        typer.Option(
            "--add-scram",
            "-S",
            metavar="CREDENTIAL",
            help="A user that a new cluster begins with: MECHANISM=[name=...,password=...], as"
            " kafka-storage.sh takes it. Repeat it for several. Only a controller uses it.",
        ),
    ] = None,
) -> None:
    """Format the log directories of a broker: for a cluster of Kafka's controllers, or for a
    cluster of its own."""
    from isotherm.broker.startup.formatting import format_directories
    from isotherm.broker.startup.scram_arguments import parse_scram_arguments
    from isotherm.log.fs import OsFileSystem

    broker, rng = _read(config), random.SystemRandom()
    credentials = parse_scram_arguments(add_scram or (), rng)
    metadata_dir = broker.metadata_log_dir
    try:
        with closed_to_others():
            formatted = format_directories(
                OsFileSystem(),
                broker.log_dirs,
                cluster_id,
                broker.node_id,
                rng,
                ignore_formatted=ignore_formatted,
                first_credentials=(metadata_dir, credentials)
                if broker.has_embedded_controller and credentials
                else None,
            )
    except OSError as error:
        raise LogDirFailedError("a log directory cannot be formatted") from error
    for path in formatted:
        kind = "metadata" if path == metadata_dir else "data"
        typer.echo(f"Formatting {kind} directory {path} for cluster {cluster_id}.")
    if not formatted:
        typer.echo("All of the log directories are already formatted.")
    if credentials and not broker.has_embedded_controller:
        typer.echo(_NO_CONTROLLER, err=True)
    elif credentials and metadata_dir not in formatted:
        typer.echo(_NOT_NEW.format(metadata_dir), err=True)


@app.command()
def info(config: _ConfigFile) -> None:
    """Print the content of the log directories. Exit code 1 if a broker cannot start with them."""
    from isotherm.broker.startup.formatting import storage_info
    from isotherm.log.fs import OsFileSystem

    try:
        report = storage_info(OsFileSystem(), _read(config).log_dirs)
    except OSError as error:
        raise LogDirFailedError("a log directory cannot be read") from error
    _print_list("Found log directory:", "Found log directories:", report.directories)
    if report.metadata is not None:
        texts = ", ".join(f"{name}={text}" for name, text in report.metadata.items())
        typer.echo(f"Found metadata: {{{texts}}}\n")
    _print_list("Found problem:", "Found problems:", report.problems)
    if report.problems:
        raise typer.Exit(1)


@app.command(name="random-uuid")
def random_uuid() -> None:
    """Print a random id, as a new cluster needs one."""
    from isotherm.types import random_uuid, uuid_to_text

    typer.echo(uuid_to_text(random_uuid(random.SystemRandom())))


def _read(path: Path) -> BrokerConfig:
    return parse_broker_config(read_properties(path))


def _print_list(one: str, several: str, items: list[Path] | list[str]) -> None:
    if items:
        typer.echo(one if len(items) == 1 else several)
        for item in items:
            typer.echo(f"  {item}")
        typer.echo("")
