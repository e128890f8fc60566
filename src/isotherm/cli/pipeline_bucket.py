"""What the jobs over a bucket share on the command line: its settings, metadata, and cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.options import parse_pairs
from isotherm.cli.output import console, human_size, print_json
from isotherm.cli.pipeline_metadata import DEFAULT_TOPIC, metadata_log
from isotherm.cli.pipeline_options import source_texts
from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from isotherm.remote.storage.settings import ObjectStoreSettings
    from isotherm.spark.driver.metadata_log import MetadataLog
    from isotherm.spark.jobs.cost import Cost
    from isotherm.spark.options import SourceOptions

MaxBytes = Annotated[
    int | None, typer.Option("--max-bytes", min=0, help="Refuse to read more than so many bytes.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Tell what it would cost, and read no data.")
]


def bucket(
    path: str | None, option: list[str] | None, *, writes: bool = False
) -> tuple[SourceOptions, ObjectStoreSettings]:
    """The options of the source, and the store that they name, which has answered; with `writes` it
    takes objects. Brokers play no part."""
    from isotherm.remote.storage.store_check import check_store
    from isotherm.spark.driver.tiers import named_store, tier_settings
    from isotherm.spark.option_parsing import parse_options

    options = parse_options(source_texts(path, option, None, None))
    check_store(named_store(options), writes=writes)
    return options, tier_settings(options)


def bucket_metadata(
    bootstrap_server: str | None,
    client_property: list[str] | None,
    log_dirs: list[Path] | None,
    dump: str | None,
    option: list[str] | None,
    *,
    audit: bool = False,
    max_bytes: int | None = None,
) -> MetadataLog | None:
    """None where no place is named: then the bucket's manifests are all there is.
    PolicyViolationError for a log of more than `max_bytes`."""
    if bootstrap_server is None and not log_dirs and dump is None:
        return None
    from isotherm.spark.option_parsing import KEY_PAIRS
    from isotherm.spark.options import STORAGE_SETTINGS

    # Options of the bucket, of which those of the store hold for a dump that lies in one. Metadata is
    # not transformed: key pairs, and what names their files, are the segments' alone.
    of_store = [
        f"{name}={value}"
        for name, value in parse_pairs(option).items()
        if name.lower() in STORAGE_SETTINGS and name.lower() != KEY_PAIRS
    ]
    place = (bootstrap_server, client_property, log_dirs, dump, DEFAULT_TOPIC)
    return metadata_log(*place, of_store, audit=audit, max_bytes=max_bytes)


def tell_cost(cost: Cost, *, as_json: bool) -> None:
    """Before the job reads anything."""
    if as_json:
        print_json({"cost": cost.as_row()})
        return
    requests = ", ".join(
        f"{number} {name}"
        for name, number in (("GET", cost.gets), ("LIST", cost.lists), ("HEAD", cost.heads))
        if number
    )
    console().print(
        f"Cost: {requests or 'no requests'}, {human_size(cost.bytes_read)},"
        f" about {cost.seconds():.0f} s in {cost.tasks} tasks."
    )


def topics_chosen(options: SourceOptions) -> Column:
    """Rows of the topics that the options choose."""
    from pyspark.sql import functions as sql

    if options.subscribe_pattern is not None:
        return sql.col("topic").rlike(f"^(?:{options.subscribe_pattern})$")
    return sql.col("topic").isin(sorted(options.named_topics))


def share_of(text: str) -> float:
    """A share such as `0.05` or `5%`."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        raise ConfigError(f"not a share value={text!r} hint='0.05 or 5%'") from error
