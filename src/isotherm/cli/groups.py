"""`isotherm groups`: list the consumer and share groups of any Kafka cluster, show how far each has
read, and set where it reads on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Annotated, Any

import typer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from isotherm.cli.client import (
    REQUEST_TIMEOUT_S,
    admin_client,
    offline_error,
    one_line_errors,
)
from isotherm.cli.group_resets import (
    Place,
    committed_offsets,
    delete,
    delete_offsets,
    reset_offsets,
)
from isotherm.cli.option_groups import with_groups
from isotherm.cli.options import (
    DEFAULT_BOOTSTRAP_SERVER,
    AsJson,
    BootstrapServer,
    ClientOptions,
)
from isotherm.cli.output import error_console, print_rows
from isotherm.cli.share_groups import ShareGroups, connected, share_rows
from isotherm.cli.topic_storage import MetricsLogin, silence_lines
from isotherm.clock import SystemClock
from isotherm.errors import RejectedError
from isotherm.storage_view.share_deliveries import ShareDeliveries
from isotherm.types import Offset

_SHARE_COLUMNS = [
    *("topic", "partition", "start_offset", "lag", "in_flight"),
    *ShareDeliveries._fields,
]

app = typer.Typer(
    no_args_is_help=True,
    help="List, describe and delete consumer and share groups, and reset their offsets.",
)
app.command(name="reset-offsets")(reset_offsets)
app.command(name="delete-offsets")(delete_offsets)
app.command()(delete)


@app.command(name="list")
@with_groups
def list_groups(
    *,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    as_json: AsJson = False,
    client: ClientOptions,
) -> None:
    """List the groups with their state and protocol."""
    with one_line_errors(bootstrap_server):
        admin = admin_client(bootstrap_server, client.properties)
        listing = admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S).result()
        for error in listing.errors or ():
            raise error
    with connected(bootstrap_server, client.properties) as share_groups:
        share_states = share_groups.states()
    # librdkafka lists share groups too, but names neither their type nor their state.
    groups = {
        group.group_id: (group.state.name.lower(), group.type.name.lower())
        for group in listing.valid
    } | {group_id: (state, "share") for group_id, state in share_states.items()}
    rows = [
        {"group": group_id, "state": state, "type": kind}
        for group_id, (state, kind) in sorted(groups.items())
    ]
    print_rows(["group", "state", "type"], rows, as_json=as_json)


@app.command()
@with_groups
def describe(
    *,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A broker's metrics for Prometheus (http://broker:9404/metrics), which tell what"
            " is in flight of a share group. May be given many times.",
        ),
    ] = None,
    metrics_login: MetricsLogin = None,
    as_json: AsJson = False,
    client: ClientOptions,
) -> None:
    """Show for each partition how far the group has read, what is left, and the member that reads
    it.

    The lag counts offsets: transaction markers and compaction leave offsets without a record. It is
    negative if the group has committed beyond the end, as after the topic was deleted and created
    again. It is unknown of a partition that no broker leads; exit code 1 if there is one.

    Of a share group the start offsets are shown, and as the lag the records from there on whose
    delivery is not over. Both are empty before the first records are delivered. From the group's
    state, in __share_group_state, come the records from the start offset on that were acknowledged
    as accepted, that are archived (rejected, or delivered too often), and that were released: they
    are delivered again, or members hold them again; delivery_count_max is the highest count of
    these. That needs READ on the topic. What members hold is in no state: in_flight are the offsets
    from the start offset to the last one delivered, from the leaders' --metrics.
    """
    with connected(bootstrap_server, client.properties) as share_groups:
        if share_groups.state(group) is not None:
            _print_share_group(share_groups, group, metrics or (), metrics_login, as_json=as_json)
            return
    with one_line_errors(bootstrap_server):
        admin = admin_client(bootstrap_server, client.properties)
        members = _members(admin, group)
        committed = committed_offsets(admin, group)
        ends, offline = read_ends(admin, {*committed, *members})
    if not committed and not members:
        raise RejectedError(f"no such group, or it has neither offsets nor members group={group}")
    columns = ["topic", "partition", "committed_offset", "end_offset", "lag", "client_id", "host"]
    print_rows(columns, group_rows(committed, ends, members), as_json=as_json)
    if offline:
        raise offline_error(offline)


def _print_share_group(
    share_groups: ShareGroups,
    group: str,
    metrics: Sequence[str],
    metrics_login: str | None,
    *,
    as_json: bool,
) -> None:
    from isotherm.console.watched_metrics import WatchedMetrics, metrics_addresses

    addresses = metrics_addresses(metrics, metrics_login)
    offsets = share_groups.offsets(group)
    begun = [place for place, offset in offsets.items() if offset.start_offset is not None]
    deliveries = share_groups.deliveries(group, begun)
    with closing(WatchedMetrics(addresses, SystemClock(), 0)) as watched:
        look = watched.look()
    rows = share_rows(group, offsets, deliveries, {} if look is None else look.in_flight)
    print_rows(_SHARE_COLUMNS, rows, as_json=as_json)
    for reason in sorted(set(deliveries.errors.values())):
        error_console().print(f"what became of the records is unknown: {reason}")
    for line in silence_lines(look):
        error_console().print(line, soft_wrap=True)


def group_rows(
    committed: Mapping[Place, Offset],
    ends: Mapping[Place, Offset],
    members: Mapping[Place, tuple[str, str]],
) -> list[dict[str, Any]]:
    """One row for each partition with a committed offset or a member. Unknown fields are None."""
    rows = []
    for place in sorted({*committed, *members}):
        offset, end = committed.get(place), ends.get(place)
        client_id, host = members.get(place, (None, None))
        rows.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committed_offset": offset,
                "end_offset": end,
                "lag": None if offset is None or end is None else end - offset,
                "client_id": client_id,
                "host": host,
            }
        )
    return rows


def _members(admin: AdminClient, group: str) -> dict[Place, tuple[str, str]]:
    """The client id and host of the member that each partition is assigned to."""
    described = admin.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)
    description = described[group].result(REQUEST_TIMEOUT_S)
    return {
        (assigned.topic, assigned.partition): (member.client_id, member.host)
        for member in description.members
        for assigned in member.assignment.topic_partitions
    }


def read_ends(
    admin: AdminClient, places: Iterable[Place]
) -> tuple[dict[Place, Offset], dict[str, list[int]]]:
    """The ends of these partitions, and by topic those that no broker leads, whose end nobody
    knows.

    Partitions that do not exist are in neither: a group may outlive its topic.
    """
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    chosen = sorted(places)
    topics = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics if chosen else {}
    led: dict[TopicPartition, OffsetSpec] = {}
    offline: dict[str, list[int]] = {}
    for topic, number in chosen:
        described = topics[topic].partitions.get(number) if topic in topics else None
        if described is None:
            continue
        if described.leader < 0:
            # librdkafka would wait for a leader, and then answer for none of the partitions.
            offline.setdefault(topic, []).append(number)
        else:
            led[TopicPartition(topic, number)] = latest
    answered = admin.list_offsets(led, request_timeout=REQUEST_TIMEOUT_S) if led else {}
    ends = {
        (place.topic, place.partition): future.result(REQUEST_TIMEOUT_S).offset
        for place, future in answered.items()
    }
    return ends, offline
