"""Options for the source of metadata: a cluster's topic, a broker's files, or a copy of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from isotherm.cli.options import parse_pairs
from isotherm.cli.pipeline_options import SparkOptions, may_be_small, progress
from isotherm.cli.point_in_time import time_ms
from isotherm.errors import ConfigError
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, REMOTE_LOG_METADATA_TOPIC

if TYPE_CHECKING:
    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.spark.jobs.replay import AsOf
    from isotherm.spark.metadata.remote_metadata_log import MetadataLog

LogDirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--log-dir",
        metavar="DIR",
        help="A broker's log directory, instead of a cluster. Name all of its directories.",
    ),
]
Dump = Annotated[
    str | None,
    typer.Option(
        "--dump",
        metavar="URL",
        help="A folder or bucket with files of the topic's log, instead of a cluster.",
    ),
]
MetadataTopicName = Annotated[
    str, typer.Option("--topic", metavar="NAME", help="The metadata topic's name.")
]
Audit = Annotated[
    bool,
    typer.Option(
        "--audit",
        help="Read the audit topic, which has every event even if the metadata topic is compacted.",
    ),
]
StoreOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="A setting of the object store, such as s3.endpoint.url=http://localhost:9000.",
    ),
]
AsOfTime = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="The state at this time: 2026-03-01T12:00:00Z, or milliseconds since 1970.",
    ),
]
AsOfOffsets = Annotated[
    str | None,
    typer.Option(
        "--as-of-offsets",
        metavar="JSON",
        help='The state before these offsets, by metadata partition: {"0": 120, "7": 31}.',
    ),
]

DEFAULT_TOPIC = REMOTE_LOG_METADATA_TOPIC


class MetadataPlace(NamedTuple):
    """The options that say where the metadata is, and how a cluster or a dump in a bucket is
    reached.
    """

    bootstrap_server: str | None
    client: Mapping[str, str]
    log_dirs: list[Path] | None
    dump: str | None
    store_option: list[str] | None

    @property
    def is_named(self) -> bool:
        return self.bootstrap_server is not None or bool(self.log_dirs) or self.dump is not None


def check_store_options(place: MetadataPlace) -> None:
    """Raises ConfigError if a job that reads nothing but metadata has settings of a bucket, and
    reads none."""
    if place.dump is None and place.store_option:
        raise ConfigError("only a bucket has settings: -o goes with --dump option=--option")


def metadata_log(
    place: MetadataPlace, topic: str, *, audit: bool = False, max_bytes: int | None = None
) -> MetadataLog:
    """The metadata log at a place. With `audit` it is that of the audit topic. Raises ConfigError
    unless the options name exactly one place, and PolicyViolationError for a log of more than
    `max_bytes`."""
    from isotherm.spark.jobs.cost import check_cost
    from isotherm.spark.jobs.replay import cost_of_log
    from isotherm.spark.metadata.remote_metadata_log import DumpMetadataLog, TopicMetadataLog

    bootstrap_server, client, log_dirs, dump, store_option = place
    if sum(source is not None for source in (bootstrap_server, log_dirs or None, dump)) != 1:
        raise ConfigError("choose one of --bootstrap-server, --log-dir and --dump")
    if audit:
        topic = REMOTE_LOG_METADATA_AUDIT_TOPIC
    log: MetadataLog
    if bootstrap_server is not None:
        log = TopicMetadataLog({"bootstrap.servers": bootstrap_server, **client}, topic)
    else:
        stores = [str(log_dir) for log_dir in log_dirs] if log_dirs else [dump or ""]
        log = DumpMetadataLog(tuple(store_settings(store, store_option) for store in stores), topic)
    if max_bytes is not None:
        check_cost(cost_of_log(log), max_bytes)
    return log


def is_small_metadata(options: SparkOptions, *logs: MetadataLog) -> bool:
    """Whether a job that reads these logs plans for a small input (isotherm.spark.small_input)."""
    from isotherm.spark.jobs.replay import cost_of_log
    from isotherm.spark.small_input import SMALL_INPUT_BYTES_MAX

    if not may_be_small(options):
        return False
    with progress("looking at the metadata"):
        return sum(cost_of_log(log).bytes_read for log in logs) <= SMALL_INPUT_BYTES_MAX


def store_settings(
    place: str, store_option: list[str] | None, *, writes: bool = False
) -> ObjectStoreSettings:
    """The store for a folder's path or a bucket's URL, after a test request: a read, or with
    `writes` a write."""
    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.remote.storage.store_check import check_store
    from isotherm.spark.options import storage_url

    config = {**parse_pairs(store_option), "url": storage_url(place)}
    settings = ObjectStoreSettings.from_config(config)
    check_store(settings, writes=writes)
    return settings


def as_of(time: str | None, offsets: str | None) -> AsOf:
    """Parse the options for a point in history. Raises ConfigError for invalid texts."""
    from isotherm.spark.jobs.replay import AsOf

    return AsOf(_parsed_offsets(offsets), None if time is None else time_ms(time))


def _parsed_offsets(text: str | None) -> dict[int, int]:
    if text is None:
        return {}
    try:
        return {int(number): int(offset) for number, offset in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"not offsets by metadata partition value={text!r} hint='{{\"0\": 120}}'"
        ) from error
