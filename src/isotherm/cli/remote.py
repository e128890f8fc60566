"""`isotherm remote`: what lies in the remote tier, read from any cluster's metadata topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from isotherm.cli.client import REQUEST_TIMEOUT_S, consumer, one_line_errors, partitions_of
from isotherm.cli.decoded_values import describe_event, text_of
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    ClientProperties,
    parse_pairs,
)
from isotherm.cli.output import console, human_size, print_rows
from isotherm.cli.remote_migrate import migrate
from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataTopic, MetadataTopicRecord
from isotherm.remote.metadata.events import iterate_records, partition_of
from isotherm.remote.metadata.fold import fold_metadata_topic
from isotherm.remote.metadata.kafka_topic import KafkaMetadataTopic
from isotherm.remote.metadata.keys import PartitionKey, parse_key, partition_key
from isotherm.remote.metadata.serde import decode_event
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.storage.layout.api import Layout
from isotherm.remote.storage.settings import AIVEN, ObjectStoreSettings
from isotherm.types import (
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    uuid_to_text,
)

Row = dict[str, Any]

app = typer.Typer(no_args_is_help=True, help="Look into the remote tier, and migrate its metadata.")
app.command()(migrate)

_EXIT_DAMAGE = 3
_SEGMENT_COLUMNS = [
    "partition", "tier", "start_offset", "end_offset", "leader_epochs", "size", "state", "objects",
]  # fmt: skip


@app.command()
def segments(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    layout: Annotated[
        str, typer.Option(help="How the bucket names objects: aiven or local-tiered-storage.")
    ] = AIVEN,
    key_prefix: Annotated[
        str | None, typer.Option(help="The bucket's key.prefix, to print whole object keys.")
    ] = None,
    as_json: AsJson = False,
    client_property: ClientProperties = None,
) -> None:
    """List a topic's segments in the remote tier, and the offsets that are only local.

    States are those of the metadata topic; only COPY_SEGMENT_FINISHED can be read.
    """
    extra = parse_pairs(client_property)
    with _metadata_topic(bootstrap_server, extra) as metadata_topic:
        caches = fold_metadata_topic(metadata_topic, lambda partition: partition.topic == topic)
    found = [metadata for cache in caches.values() for metadata in cache.segments()]
    names = _layout(layout, key_prefix)
    rows = [_segment_row(metadata, names) for metadata in sorted(found, key=_by_position)]
    rows += _local_rows(bootstrap_server, extra, topic, found)
    if not as_json:
        rows = [{**row, "objects": _joined_names(row.get("objects", []))} for row in rows]
    print_rows(_SEGMENT_COLUMNS, rows, as_json=as_json)
    if not as_json:
        size = sum(metadata.segment_size_in_bytes for metadata in found if _is_finished(metadata))
        console().print(f"\n{len(found)} segments, {human_size(size)} readable in the remote tier")


@app.command()
def events(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    topic: Annotated[
        str | None, typer.Option(help="Only events of this topic's partitions.")
    ] = None,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Read the audit topic: every event, where the metadata topic is compacted.",
        ),
    ] = False,
    as_json: AsJson = False,
    client_property: ClientProperties = None,
) -> None:
    """Print the records of `__remote_log_metadata`, decoded; with --audit every event there was.

    Exit code 3 tells that a record could not be decoded; it is printed with its offset.
    """
    damage: list[str] = []
    name = REMOTE_LOG_METADATA_AUDIT_TOPIC if audit else REMOTE_LOG_METADATA_TOPIC
    with _metadata_topic(bootstrap_server, parse_pairs(client_property), name) as metadata_topic:
        rows = (
            row
            for row in _event_rows(metadata_topic, damage)
            if topic is None or row.get("topic") == topic
        )
        columns = [
            "metadata_partition",
            "offset",
            "key",
            "type",
            "topic",
            "partition",
            "segment_id",
        ]
        columns += ["state", "start_offset", "end_offset", "size", "event_timestamp"]
        print_rows(columns, rows, as_json=as_json)
    for line in damage:
        typer.echo(f"isotherm: {line}", err=True)
    if damage:
        raise typer.Exit(_EXIT_DAMAGE)


@contextmanager
def _metadata_topic(
    bootstrap_server: str, extra: dict[str, str], name: str = REMOTE_LOG_METADATA_TOPIC
) -> Iterator[MetadataTopic]:
    with one_line_errors(bootstrap_server):
        topic = KafkaMetadataTopic({"bootstrap.servers": bootstrap_server, **extra}, topic=name)
        try:
            yield topic
        finally:
            topic.close()


def _layout(layout: str, key_prefix: str | None) -> Layout:
    # No store is opened: object names do not depend on where the bucket is.
    config = {"url": "memory://", "layout": layout}
    if key_prefix is not None:
        config["key.prefix"] = key_prefix
    return ObjectStoreSettings.from_config(config).create_layout()


def _joined_names(keys: list[str]) -> str:
    """`a.log`, `a.indexes` -> `a.{log,indexes}`: a segment's objects differ in their suffix."""
    if not keys:
        return ""
    suffixes = ",".join(key.rpartition(".")[2] for key in keys)
    return f"{keys[0].rpartition('.')[0]}.{{{suffixes}}}"


def _by_position(metadata: RemoteLogSegmentMetadata) -> tuple[int, int]:
    return metadata.topic_id_partition.partition, metadata.start_offset


def _is_finished(metadata: RemoteLogSegmentMetadata) -> bool:
    return metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def _segment_row(metadata: RemoteLogSegmentMetadata, layout: Layout) -> Row:
    return {
        "partition": metadata.topic_id_partition.partition,
        "tier": "remote",
        "start_offset": metadata.start_offset,
        "end_offset": metadata.end_offset_inclusive,
        "leader_epochs": {str(e): o for e, o in metadata.segment_leader_epochs.items()},
        "size": metadata.segment_size_in_bytes,
        "state": metadata.state.name,
        "segment_id": uuid_to_text(metadata.segment_id.id),
        "objects": list(layout.object_keys(metadata)),
    }


def _local_rows(
    bootstrap_server: str,
    extra: dict[str, str],
    topic: str,
    found: list[RemoteLogSegmentMetadata],
) -> list[Row]:
    """Per partition the offsets after the last one in the remote tier, which only a broker has."""
    copied_up_to: dict[int, int] = {}
    for metadata in filter(_is_finished, found):
        partition = metadata.topic_id_partition.partition
        end = metadata.end_offset_inclusive
        copied_up_to[partition] = max(end, copied_up_to.get(partition, -1))
    with one_line_errors(bootstrap_server):
        reader = consumer(bootstrap_server, extra)
        try:
            rows = []
            for assigned in partitions_of(reader, topic):
                low, high = reader.get_watermark_offsets(assigned, timeout=REQUEST_TIMEOUT_S)
                start = max(low, copied_up_to.get(assigned.partition, -1) + 1)
                if start < high:
                    rows.append(
                        {
                            "partition": assigned.partition,
                            "tier": "local",
                            "start_offset": start,
                            "end_offset": high - 1,
                        }
                    )
            return rows
        finally:
            reader.close()


def _event_rows(topic: MetadataTopic, damage: list[str]) -> Iterator[Row]:
    for metadata_partition in range(topic.partition_count):
        named: dict[PartitionKey, str] = {}
        for record in iterate_records(topic, metadata_partition):
            yield _event_row(record, named, damage)


def _event_row(
    record: MetadataTopicRecord, named: dict[PartitionKey, str], damage: list[str]
) -> Row:
    """`named` are the topics' names that records before this one told: a tombstone has none."""
    row: Row = {"metadata_partition": record.partition, "offset": record.offset}
    if record.key is not None:
        row["key"] = text_of(record.key)
    try:
        if record.value is None:
            return {**row, "type": "tombstone", **_place_of_tombstone(record, named)}
        event = decode_event(record.value)
        partition = partition_of(event)
        named[partition_key(partition)] = partition.topic
        return {**row, **describe_event(event)}
    except CorruptMetadataError as error:
        damage.append(f"{error} partition={record.partition} offset={record.offset}")
        value = "" if record.value is None else record.value.hex()
        return {**row, "type": "damaged", "value": value}


def _place_of_tombstone(record: MetadataTopicRecord, named: dict[PartitionKey, str]) -> Row:
    key = parse_key(record.key or b"")
    place = PartitionKey(key.topic_id, key.partition)
    return {
        "topic": named.get(place),
        "topic_id": uuid_to_text(key.topic_id),
        "partition": key.partition,
    }
