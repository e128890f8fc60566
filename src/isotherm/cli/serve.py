"""`isotherm serve`: run a broker."""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from isotherm.cli.line_limit import LINES_PER_S, LineLimit
from isotherm.cli.options import AsJson
from isotherm.cli.output import error_console, print_rows
from isotherm.clock import SystemClock
from isotherm.config.broker import BrokerConfig
from isotherm.config.layers import (
    Setting,
    embedded_defaults,
    environment_properties,
    layer_settings,
    parse_override,
    read_properties,
)
from isotherm.config.remote import NATIVE_STORAGE_MANAGER
from isotherm.config.secret_files import close_to_others, warn_of_readers
from isotherm.config.security import is_secret
from isotherm.config.server_properties import parse_broker_config
from isotherm.printable import HIDDEN, LineFormatter, without_passwords
from isotherm.segment.file_names import META_PROPERTIES_NAME

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="A server.properties file."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override", "-o", metavar="KEY=VALUE", help="Set one key. Overrides all other sources."
    ),
]
DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        "-d",
        help="Folder for both tiers where nothing else is configured: log/ and bucket/.",
    ),
]
DEFAULT_DATA_DIR = Path("isotherm-data")


def serve(
    config: ConfigFile = None,
    override: Overrides = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    log_level: Annotated[
        str, typer.Option("--log-level", help="debug, info, warning or error.")
    ] = "info",
    log_lines_per_s: Annotated[
        float,
        typer.Option(
            "--log-lines-per-s",
            min=0,
            help="Lines a second, over time, of each kind; more are counted. 0 is no bound.",
        ),
    ] = LINES_PER_S,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print every setting with its source, and exit."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a broker that any Kafka client can talk to.

    Without any option it listens on localhost:9092, keeps its logs in isotherm-data/log and uses
    isotherm-data/bucket as the remote tier. Settings have Kafka's names and come, in rising
    priority, from the embedded defaults, --config, KAFKA_* variables and --override. SIGHUP reads
    them again and applies what can be changed while running. For example:

    isotherm serve -o listeners=PLAINTEXT://:9092 -o rsm.config.url=s3://my-bucket/kafka
    """

    def settings() -> dict[str, Setting]:
        return broker_settings(config, override, data_dir)

    if print_config:
        _print_settings(settings(), as_json=as_json)
        return
    lines = start_logging(log_level, log_lines_per_s)
    close_to_others()
    # The import of a broker takes half a second, so other commands do not do it. Garbage
    # collections would take a tenth of that and free nothing, because modules stay.
    gc.disable()
    from isotherm.broker.process import exit_at_once, run

    gc.freeze()
    gc.enable()

    try:
        status = run(lambda: _with_usable_bucket(parsed(settings())))
    finally:
        lines.report()
    exit_at_once(status)


def broker_settings(
    config: Path | None, override: list[str] | None, data_dir: Path
) -> dict[str, Setting]:
    """The settings with which a broker starts, each with its source. Logs a warning for a file with
    secrets that other users may read."""
    texts = read_properties(config) if config else {}
    if config and any(is_secret(text) for text in texts):
        warn_of_readers(config)
    given = layer_settings(
        [
            (str(config), texts),
            ("environment", environment_properties(os.environ)),
            ("--override", dict(parse_override(text) for text in override or [])),
        ]
    )
    defaults = embedded_defaults(data_dir, {name: entry.value for name, entry in given.items()})
    return layer_settings([("embedded default", defaults)]) | given


def parsed(settings: dict[str, Setting]) -> BrokerConfig:
    return parse_broker_config({name: entry.value for name, entry in settings.items()})


def _with_usable_bucket(config: BrokerConfig) -> BrokerConfig:
    """The configuration, once its bucket is usable if the log directories are new: a start that a
    wrong bucket stops leaves nothing behind. Directories of an earlier start are checked by the
    broker. Raises as `check_store`."""
    remote = config.remote
    if (
        remote.remote_log_storage_system_enable
        and remote.remote_log_storage_manager_class_name == NATIVE_STORAGE_MANAGER
        and not any((path / META_PROPERTIES_NAME).exists() for path in config.log_dirs)
    ):
        from isotherm.remote.storage.settings import ObjectStoreSettings
        from isotherm.remote.storage.store_check import check_store

        check_store(ObjectStoreSettings.from_config(remote.rsm_config), writes=True)
    return config


def _print_settings(settings: dict[str, Setting], *, as_json: bool) -> None:
    parsed(settings)
    rows = [
        {"key": name, "value": _shown(name, entry.value), "source": entry.source}
        for name, entry in sorted(settings.items())
    ]
    print_rows(["key", "value", "source"], rows, as_json=as_json)


def _shown(name: str, value: str) -> str:
    return HIDDEN if is_secret(name) and value else without_passwords(value)


def start_logging(level: str, lines_per_s: float) -> LineLimit:
    if level.upper() not in logging.getLevelNamesMapping():
        raise typer.BadParameter(f"no such level: {level}", param_hint="--log-level")
    handler: logging.Handler
    if sys.stderr.isatty():
        from rich.logging import RichHandler

        handler = RichHandler(console=error_console(), show_path=False, markup=False)
        layout = "%(name)s: %(message)s"
    else:
        handler = logging.StreamHandler()
        layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(LineFormatter(layout))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    lines = LineLimit(handler, SystemClock(), per_s=lines_per_s)
    lines.start()
    return lines
