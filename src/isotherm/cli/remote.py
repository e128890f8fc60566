"""`isotherm remote`: shows the content of the remote tier, from any cluster's metadata topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from isotherm.cli.client import (
    REQUEST_TIMEOUT_S,
    admin_client,
    consumer,
    offline_error,
    offline_partitions,
    one_line_errors,
    partitions_of,
)
from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    ClientOptions,
)
from isotherm.cli.output import console, human_size, print_stream
from isotherm.cli.remote_events import events, open_metadata_topic
from isotherm.cli.remote_migrate import migrate
from isotherm.remote.history.holes import find_holes
from isotherm.remote.metadata.folding.fold import fold_metadata_topic
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.storage.layout.names import AIVEN
from isotherm.remote.storage.layout.segment_layout import Layout
from isotherm.storage_view.segment_facts import named_layout, object_keys
from isotherm.types import uuid_to_text

Row = dict[str, Any]

app = typer.Typer(no_args_is_help=True, help="Inspect the remote tier, and migrate its metadata.")
app.command()(events)
app.command()(migrate)

_IS_TIERED = "remote.storage.enable"
_COPY_INTERVAL = "remote.log.manager.task.interval.ms"
_SEGMENT_COLUMNS = [
    "partition", "tier", "start_offset", "end_offset", "size", "state", "leader_epochs", "objects",
    "custom_metadata",
]  # fmt: skip


@app.command()
@with_groups
def segments(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    layout: Annotated[
        str, typer.Option(help="How the bucket names objects: aiven or local-tiered-storage.")
    ] = AIVEN,
    key_prefix: Annotated[
        str | None, typer.Option(help="The bucket's key.prefix, to print whole object keys.")
    ] = None,
    as_json: AsJson = False,
    client: ClientOptions,
) -> None:
    """List a topic's segments in the remote tier, and the offsets that are only local.

    States are those of the metadata topic; only COPY_SEGMENT_FINISHED can be read. Where finished
    segments do not meet, a line of tier `hole` names the offsets that none of them holds. Custom
    metadata that is not the layout's is shown as it is, in hex. What is only local of a partition
    that no broker leads is unknown; exit code 1 if there is one.
    """
    extra = client.properties
    with open_metadata_topic(bootstrap_server, extra) as metadata_topic:
        caches = fold_metadata_topic(metadata_topic, lambda partition: partition.topic == topic)
    segments = [metadata for cache in caches.values() for metadata in cache.segments()]
    names = named_layout(layout, key_prefix)
    rows = [_segment_row(metadata, names) for metadata in sorted(segments, key=_by_position)]
    holes = _hole_rows(caches.values())
    rows = sorted(rows + holes, key=lambda row: (row["partition"], row["start_offset"]))
    local, offline = _local_rows(bootstrap_server, extra, topic, segments)
    rows += local
    if not as_json:
        rows = [{**row, "objects": _joined_names(row.get("objects", []))} for row in rows]
    print_stream(_SEGMENT_COLUMNS, rows, as_json=as_json)
    for hole in holes:
        typer.echo(
            "isotherm: a hole in the remote history: no finished segment holds these offsets"
            f" topic={topic} partition={hole['partition']} offsets={hole['start_offset']}-"
            f"{hole['end_offset']}",
            err=True,
        )
    if not as_json:
        size = sum(segment.segment_size_in_bytes for segment in segments if _is_finished(segment))
        console().print(
            f"\n{len(segments)} segments, {human_size(size)} readable in the remote tier"
        )
        if not segments:
            with one_line_errors(bootstrap_server):
                console().print(_why_none(admin_client(bootstrap_server, extra), topic))
    if offline:
        raise offline_error({topic: offline})


def _why_none(admin: AdminClient, topic: str) -> str:
    """Why a topic has no segment in the remote tier. The time of the next copy is the broker's own;
    its interval bounds it."""
    of_topic = _configs(admin, ResourceType.TOPIC, topic)
    if of_topic.get(_IS_TIERED) != "true":
        return f"the topic is not tiered: {_IS_TIERED}={of_topic.get(_IS_TIERED)}"
    partitions = admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].partitions
    leader = partitions[min(partitions)].leader
    interval_ms = _configs(admin, ResourceType.BROKER, str(leader)).get(_COPY_INTERVAL)
    due = (
        ""
        if not interval_ms
        else f"the next copy is due in {int(interval_ms) / 1000:g} s or less; "
    )
    return (
        f"{due}closed segments are copied, and a segment closes at"
        f" segment.bytes={of_topic.get('segment.bytes')} or segment.ms={of_topic.get('segment.ms')}"
    )


def _configs(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, str | None]:
    resource = ConfigResource(kind, name)
    described = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
    return {key: entry.value for key, entry in described[resource].result().items()}


def _joined_names(keys: list[str]) -> str:
    """Join the keys of a segment, which differ in their suffix:

    `a.log`, `a.indexes` -> `a.{log,indexes}`.
    """
    if not keys:
        return ""
    suffixes = ",".join(key.rpartition(".")[2] for key in keys)
    return f"{keys[0].rpartition('.')[0]}.{{{suffixes}}}"


def _by_position(metadata: RemoteLogSegmentMetadata) -> tuple[int, int]:
    return metadata.topic_id_partition.partition, metadata.start_offset


def _is_finished(metadata: RemoteLogSegmentMetadata) -> bool:
    return metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def _hole_rows(caches: Iterable[RemoteLogMetadataCache]) -> list[Row]:
    return [
        {
            "partition": hole.after.topic_id_partition.partition,
            "tier": "hole",
            "start_offset": hole.first_offset,
            "end_offset": hole.last_offset,
        }
        for cache in caches
        for hole in find_holes(cache.segments())
    ]


def _segment_row(metadata: RemoteLogSegmentMetadata, layout: Layout) -> Row:
    objects, foreign = object_keys(metadata, layout)
    row = {
        "partition": metadata.topic_id_partition.partition,
        "tier": "remote",
        "start_offset": metadata.start_offset,
        "end_offset": metadata.end_offset_inclusive,
        "leader_epochs": {str(e): o for e, o in metadata.segment_leader_epochs.items()},
        "size": metadata.segment_size_in_bytes,
        "state": metadata.state.name,
        "segment_id": uuid_to_text(metadata.segment_id.id),
        "objects": objects,
    }
    return row if foreign is None else {**row, "custom_metadata": foreign}


def _local_rows(
    bootstrap_server: str,
    extra: dict[str, str],
    topic: str,
    segments: list[RemoteLogSegmentMetadata],
) -> tuple[list[Row], list[int]]:
    """One row per partition for the offsets after the last one in the remote tier, which only a
    broker has; and the partitions that no broker leads.
    """
    copied_up_to: dict[int, int] = {}
    for metadata in filter(_is_finished, segments):
        partition = metadata.topic_id_partition.partition
        end = metadata.end_offset_inclusive
        copied_up_to[partition] = max(end, copied_up_to.get(partition, -1))
    with one_line_errors(bootstrap_server):
        reader = consumer(bootstrap_server, extra)
        try:
            rows = []
            partitions = partitions_of(reader, topic)
            numbers = [partition.partition for partition in partitions]
            offline = offline_partitions(reader, topic, numbers)
            for assigned in partitions:
                if assigned.partition in offline:
                    continue
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
            return rows, offline
        finally:
            reader.close()
