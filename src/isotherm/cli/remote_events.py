"""`isotherm remote events`: prints the records of the metadata topic while they are read.

A record is printed as soon as it is read and not kept, so memory is bounded by one read, whatever
the size of the topic. Records of other topics are not decoded.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from confluent_kafka import OFFSET_END, TopicPartition
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from isotherm.cli.client import (
    REQUEST_TIMEOUT_S,
    admin_client,
    consumer,
    one_line_errors,
    unknown_topic,
)
from isotherm.cli.event_columns import EventRows
from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    ClientOptions,
)
from isotherm.cli.output import error_console, print_stream
from isotherm.cli.point_in_time import time_ms
from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.folding.fold import COLUMNAR_RECORDS_MIN
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.metadata.wire.events import iterate_columns
from isotherm.types import (
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    Offset,
)

Row = dict[str, Any]

_EXIT_DAMAGE = 3
_COLUMNS = [
    "metadata_partition", "offset", "type", "topic", "partition", "state", "start_offset",
    "end_offset", "size", "event_timestamp", "segment_id", "key",
]  # fmt: skip


@with_groups
def events(
    *,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    topic: Annotated[
        str | None, typer.Option(help="Only events of this topic's partitions.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only records appended since: 2026-03-01T12:00:00Z, or milliseconds since 1970."
            " Earlier ones are not read.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many.")] = None,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Read the audit topic: every event, where the metadata topic is compacted.",
        ),
    ] = False,
    as_json: AsJson = False,
    client: ClientOptions,
) -> None:
    """Print the records of `__remote_log_metadata`, decoded; with --audit every event there was.
    Times are UTC, and milliseconds since 1970 as JSON.

    They come one metadata partition after the other, and are printed while they are read. Exit code
    3 means that a record could not be decoded; it is printed with its offset.
    """
    damage: list[str] = []
    name = REMOTE_LOG_METADATA_AUDIT_TOPIC if audit else REMOTE_LOG_METADATA_TOPIC
    extra = client.properties
    starts: Mapping[int, Offset] = {}
    with open_metadata_topic(bootstrap_server, extra, name) as metadata_topic:
        if since is not None:
            count = metadata_topic.partition_count
            starts = _starts(bootstrap_server, extra, name, count, time_ms(since))
        rows = event_rows(metadata_topic, damage, topic=topic, starts=starts)
        first = list(itertools.islice(rows, 1))
        if not first and topic is not None:
            # A topic that was deleted may have events.
            _check_topic(bootstrap_server, extra, topic)
        rows = itertools.chain(first, rows)
        print_stream(_COLUMNS, itertools.islice(rows, limit), as_json=as_json)
    for line in damage:
        typer.echo(f"isotherm: {line}", err=True)
    if damage:
        raise typer.Exit(_EXIT_DAMAGE)


def _check_topic(bootstrap_server: str, extra: dict[str, str], topic: str) -> None:
    """Raise UnknownTopicOrPartitionError if the cluster has no such topic."""
    names = admin_client(bootstrap_server, extra).list_topics(timeout=REQUEST_TIMEOUT_S).topics
    if topic not in names:
        raise unknown_topic(topic, names)


@contextmanager
def open_metadata_topic(
    bootstrap_server: str, extra: dict[str, str], name: str = REMOTE_LOG_METADATA_TOPIC
) -> Iterator[MetadataTopic]:
    with one_line_errors(bootstrap_server):
        topic = KafkaMetadataTopic({"bootstrap.servers": bootstrap_server, **extra}, topic=name)
        try:
            yield topic
        finally:
            topic.close()


def _starts(
    bootstrap_server: str, extra: dict[str, str], name: str, partition_count: int, since_ms: int
) -> dict[int, Offset]:
    """The first offset of each metadata partition that was appended at `since_ms` or later."""
    reader = consumer(bootstrap_server, extra)
    try:
        times = [TopicPartition(name, number, since_ms) for number in range(partition_count)]
        answers = reader.offsets_for_times(times, timeout=REQUEST_TIMEOUT_S)
        # If there is no such record, start at the end.
        return {
            answer.partition: reader.get_watermark_offsets(answer, timeout=REQUEST_TIMEOUT_S)[1]
            if answer.offset in (OFFSET_END, -1)
            else answer.offset
            for answer in answers
        }
    finally:
        reader.close()


def event_rows(
    metadata_topic: MetadataTopic,
    damage: list[str],
    *,
    topic: str | None = None,
    starts: Mapping[int, Offset] | None = None,
    columnar_records_min: int = COLUMNAR_RECORDS_MIN,
) -> Iterator[Row]:
    """One row per record, of all topics or one.

    `damage` gets a line for each record that cannot be decoded.
    """
    with _progress() as bars:
        task = bars.add_task("metadata records read", total=None)
        for metadata_partition in range(metadata_topic.partition_count):
            start = (starts or {}).get(metadata_partition, 0)
            first, end = metadata_topic.offsets(metadata_partition)
            bars.update(task, total=(bars.tasks[0].total or 0) + max(0, end - max(first, start)))
            rows = EventRows(
                metadata_partition, topic, damage, columnar_records_min=columnar_records_min
            )
            for columns in iterate_columns(metadata_topic, metadata_partition, start_offset=start):
                bars.advance(task, len(columns.offset))
                yield from rows.of_run(columns)


def _progress() -> Progress:
    """A progress bar on the terminal.

    It is off if rows are printed there, because these show the progress.
    """
    terminal = error_console()
    is_off = not terminal.is_terminal or sys.stdout.isatty()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=terminal, transient=True, disable=is_off)
