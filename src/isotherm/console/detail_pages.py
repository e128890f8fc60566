"""The requests for what one topic, group or broker has beyond the overview: its configuration, and
who reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, TypeVar

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from isotherm.console.answers import GroupReading, group_rows
from isotherm.console.replies import UNAVAILABLE, named_topic, newest_storage, reply
from isotherm.storage_view.share_deliveries import ShareDeliveries

if TYPE_CHECKING:
    from starlette.requests import Request

    from isotherm.console.watched_cluster import Look, WatchedCluster
    from isotherm.console.watched_metrics import MetricsLook, WatchedMetrics
    from isotherm.storage_view.group_members import GroupMembers, Member
    from isotherm.storage_view.group_reader import GroupState
    from isotherm.storage_view.in_flight import InFlight
    from isotherm.storage_view.resource_settings import Setting
    from isotherm.storage_view.rows import Row
    from isotherm.storage_view.share_deliveries import GroupDeliveries
    from isotherm.types import TopicPartition

_T = TypeVar("_T")
MEMBERS_MAX = 500
"""The most members of a group that a page shows."""


class DetailPages:
    """The handlers. The server calls each in a thread, and it may block."""

    def __init__(self, cluster: WatchedCluster, metrics: WatchedMetrics) -> None:
        self._cluster = cluster
        self._metrics = metrics

    def routes(self) -> list[Route]:
        return [
            Route("/api/topics/{topic}/configuration", self.topic_configuration),
            Route("/api/topics/{topic}/groups", self.topic_groups),
        ]

    def topic_configuration(self, request: Request) -> Response:
        storage, error = newest_storage(self._cluster)
        name = named_topic(storage, request).state.name
        return reply(storage, error, settings_row(self._cluster.topic_settings(name)))

    def topic_groups(self, request: Request) -> Response:
        groups = self._cluster.groups()
        storage, error = newest_storage(self._cluster)
        name = named_topic(storage, request).state.name
        if groups.content is None:
            raise HTTPException(UNAVAILABLE, groups.error)
        readers = readers_of(name, groups.content)
        reading = group_reading(self._cluster, self._metrics)
        return reply(storage, error, {"groups": group_rows(readers, storage, reading)})


def group_reading(cluster: WatchedCluster, metrics: WatchedMetrics) -> GroupReading:
    look = metrics.look()
    return GroupReading(cluster.progress, None if look is None else look.traffic)


def settings_row(look: Look[list[Setting]]) -> Row:
    """The settings, null if they could never be read; `settings_error` is the reason if they cannot
    be read now."""
    settings = look.content
    return {
        "settings": (
            None
            if settings is None
            else [{**asdict(setting), "is_default": setting.is_default} for setting in settings]
        ),
        "settings_error": look.error,
    }


def members_row(look: Look[GroupMembers]) -> Row:
    """The first MEMBERS_MAX members, null if they could never be read; `members_error` is the
    reason if they cannot be read now."""
    group = look.content
    return {
        "assignor": None if group is None else group.assignor,
        "members_total": None if group is None else len(group.members),
        "members": None if group is None else [_member_row(m) for m in group.members[:MEMBERS_MAX]],
        "members_error": look.error,
    }


def deliveries_row(
    group: GroupState, look: Look[GroupDeliveries], metrics: MetricsLook | None
) -> Row:
    """What is in flight of a share group, and what became of its records, by partition. Counts are
    null where they are unknown; `error` is the reason of those that are read from the state."""
    in_flight: InFlight = {} if metrics is None else metrics.in_flight
    deliveries = look.content
    rows = []
    for place in sorted(group.share or ()):
        of_place = None if deliveries is None else deliveries.by_partition.get(place)
        counts = dict.fromkeys(ShareDeliveries._fields) if of_place is None else of_place._asdict()
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "in_flight": in_flight.get((group.group_id, place)),
                **counts,
                "error": look.error if deliveries is None else deliveries.errors.get(place),
            }
        )
    return {"deliveries": rows}


def _member_row(member: Member) -> Row:
    """A member with its partitions by topic. `assigned` is null if only its own program can read
    it."""
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "assigned": None if member.assigned is None else _by_topic(member.assigned),
        "awaited": _by_topic(member.awaited),
    }


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def topic_lags(rows: Iterable[Row]) -> list[Row]:
    """The lag of a group in each topic, from the rows of its partitions: as for the whole group,
    offsets beyond an end hide none that are left elsewhere. `lag` is null if no leader answers."""
    by_topic: dict[str, list[Row]] = {}
    for row in rows:
        by_topic.setdefault(row["topic"], []).append(row)
    return [_topic_lag(topic, partitions) for topic, partitions in by_topic.items()]


def _topic_lag(topic: str, partitions: Sequence[Row]) -> Row:
    lags = [partition["lag"] for partition in partitions if partition["lag"] is not None]
    return {
        "topic": topic,
        "partitions": len(partitions),
        "lag": sum(lag for lag in lags if lag > 0) or sum(lags) if lags else None,
        "remote_lag": sum(partition["remote_lag"] or 0 for partition in partitions),
    }


def readers_of(topic: str, groups: Iterable[GroupState]) -> list[GroupState]:
    """The groups that have committed offsets of a topic, or as share groups a state of it, with
    these offsets alone."""
    own = (
        replace(
            group,
            committed=_of_topic(topic, group.committed),
            share=None if group.share is None else _of_topic(topic, group.share),
        )
        for group in groups
    )
    return [topic for topic in own if topic.committed or topic.share]


def _of_topic(topic: str, by_partition: Mapping[TopicPartition, _T]) -> dict[TopicPartition, _T]:
    return {place: value for place, value in by_partition.items() if place.topic == topic}
