"""The requests for brokers: their disks, what they lead, their configuration and their errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from isotherm.console.detail_pages import settings_row
from isotherm.console.replies import NOT_FOUND, newest_storage, reply

if TYPE_CHECKING:
    from starlette.requests import Request

    from isotherm.console.watched_cluster import WatchedCluster
    from isotherm.console.watched_metrics import WatchedMetrics
    from isotherm.storage_view.broker_release import BrokerRelease
    from isotherm.storage_view.cluster_reader import BrokerState
    from isotherm.storage_view.cluster_storage import ClusterStorage
    from isotherm.storage_view.rows import Row
    from isotherm.types import BrokerId


class BrokerPages:
    """The handlers. The server calls each in a thread, and it may block."""

    def __init__(self, cluster: WatchedCluster, metrics: WatchedMetrics) -> None:
        self._cluster = cluster
        self._metrics = metrics

    def routes(self) -> list[Route]:
        return [
            Route("/api/brokers", self.brokers),
            Route("/api/brokers/{broker}", self.broker),
        ]

    def brokers(self, _: Request) -> Response:
        storage, error = newest_storage(self._cluster)
        releases = self._cluster.releases().content or {}
        placement = Placement.of(storage)
        rows = [broker_row(broker, storage, placement, releases) for broker in storage.brokers]
        return reply(storage, error, {"brokers": rows})

    def broker(self, request: Request) -> Response:
        storage, error = newest_storage(self._cluster)
        name = request.path_params["broker"]
        broker = next(
            (candidate for candidate in storage.brokers if str(candidate.broker_id) == name),
            None,
        )
        if broker is None:
            raise HTTPException(NOT_FOUND, f"no such broker: {name}")
        metrics = self._metrics.look()
        content = {
            **broker_row(
                broker, storage, Placement.of(storage), self._cluster.releases().content or {}
            ),
            **(
                {"settings": None, "settings_error": broker.error}
                if broker.error is not None
                else settings_row(self._cluster.broker_settings(broker))
            ),
            "errors": None if metrics is None else broker_errors(broker, storage, metrics.errors),
        }
        return reply(storage, error, content)


class Placement(NamedTuple):
    """How many partitions each broker leads, has, and has without being in sync."""

    leaders: Counter[BrokerId | None]
    replicas: Counter[BrokerId]
    lagging_replicas: Counter[BrokerId]

    @classmethod
    def of(cls, storage: ClusterStorage) -> Self:
        """Counted in one walk over all partitions."""
        placement = cls(Counter(), Counter(), Counter())
        for topic in storage.topics.values():
            for partition in topic.partitions:
                placement.leaders[partition.state.leader] += 1
                placement.replicas.update(partition.state.replicas)
                placement.lagging_replicas.update(
                    set(partition.state.replicas).difference(partition.state.in_sync_replicas)
                )
        return placement


def broker_row(
    broker: BrokerState,
    storage: ClusterStorage,
    placement: Placement,
    releases: Mapping[BrokerId, BrokerRelease],
) -> Row:
    """A broker with what it leads and follows. `lagging_replicas` are those that are not in sync.
    `broker_error` is the reason if it did not answer."""
    release = releases.get(broker.broker_id)
    row = asdict(broker)
    return {
        "broker_error": row.pop("error"),
        **row,
        "is_controller": broker.broker_id == storage.controller_id,
        "leaders": placement.leaders[broker.broker_id],
        "replicas": placement.replicas[broker.broker_id],
        "lagging_replicas": placement.lagging_replicas[broker.broker_id],
        "kafka_release": None if release is None else release.kafka_release,
        "supported_level": None if release is None else release.supported_level,
        "cluster_level": None if release is None else release.cluster_level,
    }


def broker_errors(broker: BrokerState, storage: ClusterStorage, errors: Row) -> Row:
    """The errors of the last hour that metrics of the broker's host count. Metrics name no broker:
    `brokers` are all that have this host."""
    return {
        "since_ms": errors["since_ms"],
        "brokers": [other.broker_id for other in storage.brokers if other.host == broker.host],
        "rows": [row for row in errors["rows"] if _host(row["broker"]) == broker.host],
        "unanswered": [
            unanswered
            for unanswered in errors["unanswered"]
            if urlsplit(unanswered["url"]).hostname == broker.host
        ],
    }


def _host(address: str) -> str | None:
    return urlsplit(f"//{address}").hostname
