"""The request for the tables that `isotherm pipeline table` made of topics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from isotherm.console.watched_cluster import Newest

if TYPE_CHECKING:
    from starlette.requests import Request

    from isotherm.clock import Clock
    from isotherm.console.watched_cluster import WatchedCluster
    from isotherm.spark.tables.iceberg_listing import ListedTable
    from isotherm.storage_view.cluster_storage import ClusterStorage
    from isotherm.storage_view.rows import Row

TABLES_INTERVAL_S = 30.0
"""The shortest time between two readings of a catalog."""
_UNAVAILABLE = 503


class TablePages:
    """The handler. The server calls it in a thread, and it may block."""

    def __init__(
        self,
        cluster: WatchedCluster,
        read_tables: Callable[[], Sequence[ListedTable]] | None,
        clock: Clock,
    ) -> None:
        """Without `read_tables` the console knows no warehouse."""
        self._cluster = cluster
        self._tables = (
            None
            if read_tables is None
            else Newest(read_tables, threading.Lock(), clock, TABLES_INTERVAL_S)
        )

    def routes(self) -> list[Route]:
        return [Route("/api/tables", self.tables)]

    def tables(self, _: Request) -> Response:
        look = self._cluster.look()
        if look.content is None:
            raise HTTPException(_UNAVAILABLE, look.error)
        row = {"read_at_ms": look.content.read_at_ms, "error": look.error}
        if self._tables is None:
            return JSONResponse({**row, "tables": None, "tables_error": None})
        listed = self._tables.look()
        rows = [table_row(each, look.content) for each in listed.content or ()]
        return JSONResponse({**row, "tables": rows, "tables_error": listed.error})


def table_row(table: ListedTable, storage: ClusterStorage) -> Row:
    """A table with its lag: the offsets up to the last stable one that it does not cover. `lag` is
    null if the topic is not this cluster's, or was made anew, or if a leader does not answer."""
    identity = table.identity
    topic = storage.topics.get(identity.topic)
    lag: int | None = None
    if topic is not None and str(topic.state.topic_id) == identity.topic_id:
        locals_ = {each.state.partition.partition: each.state.local for each in topic.partitions}
        if None not in locals_.values():
            lag = sum(
                max(0, local.last_stable_offset - table.covered.get(n, local.log_start_offset))
                for n, local in locals_.items()
                if local is not None
            )
    return {
        "table": table.name,
        "topic": identity.topic,
        "mode": identity.mode,
        "value_format": identity.value_format,
        "rows": table.rows,
        "snapshots": table.snapshots,
        "last_commit_ms": table.last_commit_ms,
        "covered": {str(partition): offset for partition, offset in table.covered.items()},
        "lag": lag,
        "dead_letters": table.dead_letters,
    }
