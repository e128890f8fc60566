"""The request for the tables that `isotherm pipeline table` made of topics."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from isotherm.console.replies import NOT_FOUND, UNAVAILABLE, newest_storage, reply
from isotherm.console.watched_cluster import Newest, NewestByKey

if TYPE_CHECKING:
    from starlette.requests import Request

    from isotherm.clock import Clock
    from isotherm.console.watched_cluster import WatchedCluster
    from isotherm.spark.tables.dead_letters import DeadLetters
    from isotherm.spark.tables.listed_table import ListedTable
    from isotherm.storage_view.cluster_storage import ClusterStorage
    from isotherm.storage_view.rows import Row
    from isotherm.types import Offset

TABLES_INTERVAL_S = 30.0
"""The shortest time between two readings of a catalog."""


class TableReader(Protocol):
    """Catalogs and folders with tables of topics. Both raise RemoteStorageError if one fails, and
    ConfigError for a missing package."""

    def listed(self) -> Sequence[ListedTable]: ...

    def dead_letters(self, table: tuple[str, str]) -> DeadLetters:
        """The newest dead letters of a table that `listed` has returned, by format and name."""
        ...


class TablePages:
    """The handlers. The server calls each in a thread, and it may block."""

    def __init__(
        self,
        cluster: WatchedCluster,
        reader: TableReader | None,
        clock: Clock,
    ) -> None:
        """Without a `reader` the console knows no warehouse."""
        self._cluster = cluster
        self._reader = reader
        if reader is not None:
            # Files are read by one page at a time, and beside the list.
            self._tables = Newest(reader.listed, threading.Lock(), clock, TABLES_INTERVAL_S)
            self._dead_letters = NewestByKey(
                reader.dead_letters, threading.Lock(), clock, TABLES_INTERVAL_S
            )

    def routes(self) -> list[Route]:
        return [Route("/api/tables", self.tables), Route("/api/tables/{table:path}", self.table)]

    def tables(self, _: Request) -> Response:
        storage, error = newest_storage(self._cluster)
        if self._reader is None:
            return reply(storage, error, {"tables": None, "tables_error": None})
        listed = self._tables.look()
        rows = [table_row(table, storage) for table in listed.content or ()]
        return reply(storage, error, {"tables": rows, "tables_error": listed.error})

    def table(self, request: Request) -> Response:
        storage, error = newest_storage(self._cluster)
        name = request.path_params["table"]
        listed = None if self._reader is None else self._tables.look()
        tables = () if listed is None else listed.content or ()
        table = next((listed_table for listed_table in tables if listed_table.name == name), None)
        if table is None:
            reason = None if listed is None else listed.error
            if reason is not None:
                raise HTTPException(UNAVAILABLE, reason)
            raise HTTPException(NOT_FOUND, f"no such table: {name}")
        content = {
            **table_row(table, storage),
            "by_partition": partition_rows(table, storage),
            **self._dead_letters_row(table),
        }
        return reply(storage, error, content)

    def _dead_letters_row(self, table: ListedTable) -> Row:
        """`newest_dead_letters` are null if they could never be read; `dead_letters_error` is the
        reason if they cannot be read now."""
        if table.dead_letters == 0:
            return {"newest_dead_letters": None, "dead_letters_error": None}
        look = self._dead_letters.look((table.table_format, table.name))
        content = None if look.content is None else asdict(look.content)
        return {"newest_dead_letters": content, "dead_letters_error": look.error}


def table_row(table: ListedTable, storage: ClusterStorage) -> Row:
    """A table with its lag: the offsets up to the last stable one that it does not cover. `lag` is
    null if the topic is not this cluster's, or was made anew, or if a leader does not answer."""
    identity = table.identity
    lags = [row["lag"] for row in partition_rows(table, storage)]
    lag = None if not _is_of_topic(table, storage) or None in lags else sum(lags)
    return {
        "table": table.name,
        "format": table.table_format,
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


def partition_rows(table: ListedTable, storage: ClusterStorage) -> list[Row]:
    """The next offset of each partition of the table or its topic, and what it lacks up to the last
    stable offset. Both are null as the lag of a table is."""
    ends: dict[int, tuple[Offset, Offset] | None] = dict.fromkeys(table.covered)
    if _is_of_topic(table, storage):
        for partition in storage.topics[table.identity.topic].partitions:
            local = partition.state.local
            ends[partition.state.partition.partition] = (
                None if local is None else (local.log_start_offset, local.last_stable_offset)
            )
    return [
        _partition_row(number, table.covered.get(number), ends[number]) for number in sorted(ends)
    ]


def _partition_row(number: int, covered: Offset | None, ends: tuple[Offset, Offset] | None) -> Row:
    lag = last_stable_offset = None
    if ends is not None:
        log_start_offset, last_stable_offset = ends
        lag = max(0, last_stable_offset - (log_start_offset if covered is None else covered))
    return {
        "partition": number,
        "next_offset": covered,
        "last_stable_offset": last_stable_offset,
        "lag": lag,
    }


def _is_of_topic(table: ListedTable, storage: ClusterStorage) -> bool:
    topic = storage.topics.get(table.identity.topic)
    return topic is not None and str(topic.state.topic_id) == table.identity.topic_id
