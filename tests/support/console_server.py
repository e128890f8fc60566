"""The console's server in the test's process, on a free port, and a browser to look at it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from isotherm.clock import Clock, SystemClock
from isotherm.console.app import ConsoleSettings, console_app
from isotherm.console.jobs import JobReports, JobRunner
from isotherm.console.server import CONNECTIONS_MAX, SHUTDOWN_TIMEOUT_S, ConsoleProtocol
from isotherm.console.watched_cluster import WatchedCluster
from isotherm.console.watched_metrics import MetricsAddresses, WatchedMetrics
from isotherm.storage_view.cluster_storage import StorageReader
from isotherm.storage_view.prices import price_list
from isotherm.storage_view.record_sources import RecordSource
from isotherm.storage_view.registered_values import RegisteredValues
from isotherm.storage_view.segment_facts import named_layout
from tests.support.scripted_records import ScriptedRecords

if TYPE_CHECKING:
    from isotherm.console.table_pages import TableReader

PRICE = "0.023"
SWEEP_COMMAND = "isotherm pipeline sweep --path s3://bucket/kafka -b localhost:9092"
CLIENT_ARGUMENTS = "-b localhost:9092"
START_TIMEOUT_S = 300
NO_METRICS = MetricsAddresses(())


class _Server(uvicorn.Server):
    """A server that signals when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()

    async def startup(self, sockets: object = None) -> None:
        await super().startup()
        self.listens.set()


@contextmanager
def running_console(
    open_reader: Callable[[], StorageReader],
    interval_s: float = 0.0,
    records: RecordSource | None = None,
    credentials: Mapping[bytes, bytes] | None = None,
    reports: Path | None = None,
    runner: JobRunner | None = None,
    metrics: MetricsAddresses = NO_METRICS,
    registered: RegisteredValues | None = None,
    protocol: type[ConsoleProtocol] = ConsoleProtocol,
    path: str = "",
    clock: Clock | None = None,
    tables: TableReader | None = None,
) -> Iterator[str]:
    """Run the console; yield its address.

    A `path` (`/tiers`) precedes the paths of all pages, as behind a reverse proxy that removes it.
    """
    source = records or ScriptedRecords()
    watched = WatchedCluster(open_reader, SystemClock(), interval_s)
    watched_metrics = WatchedMetrics(metrics, SystemClock(), interval_s)
    settings = ConsoleSettings(
        price_list(PRICE),
        named_layout("aiven", None),
        ["127.0.0.1"],
        SWEEP_COMMAND,
        CLIENT_ARGUMENTS,
        credentials,
        watched_metrics,
        clock or SystemClock(),
        registered,
        tables,
    )
    app = console_app(watched, source, settings, JobReports(reports), runner)
    config = uvicorn.Config(
        Starlette(routes=[Mount(path, app)]) if path else app,
        host="127.0.0.1",
        port=0,
        http=protocol,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        log_level="error",
        lifespan="off",
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, name="console", daemon=True)
    thread.start()
    try:
        assert server.listens.wait(START_TIMEOUT_S), "the console does not start"
        _, port = server.servers[0].sockets[0].getsockname()
        yield f"http://127.0.0.1:{port}{path}"
    finally:
        server.should_exit = True
        thread.join()
        watched.close()
        source.close()
        watched_metrics.close()
