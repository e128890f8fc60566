"""The console's web application: pages, and the JSON that they show. Its only state is the cached
state of the cluster.

Every answer forbids the browser to load anything from another site, and to show the page in a
frame.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from isotherm import __version__
from isotherm.config.http_credentials import HttpLogins, LoginResult
from isotherm.console.answers import (
    group_detail,
    group_rows,
    history_reach,
    overview,
    past_tier_maps,
    tier_maps,
    topic_detail,
)
from isotherm.console.broker_pages import BrokerPages
from isotherm.console.detail_pages import (
    DetailPages,
    deliveries_row,
    group_reading,
    members_row,
    topic_lags,
)
from isotherm.console.group_answers import group_answers
from isotherm.console.job_pages import job_routes
from isotherm.console.jobs import JobReports, JobRunner
from isotherm.console.missing_page import is_for_a_person, missing_page
from isotherm.console.openapi import (
    COLUMNS_MAX,
    PARTITIONS_MAX,
    openapi_document,
)
from isotherm.console.query import number, optional_number
from isotherm.console.record_pages import RecordPages
from isotherm.console.records import RecordBrowser
from isotherm.console.replies import (
    NOT_FOUND,
    UNAVAILABLE,
    named_topic,
    newest_storage,
    reply,
)
from isotherm.console.table_pages import TablePages, TableReader
from isotherm.console.topic_answers import storage_problems, topic_answers, topic_problems
from isotherm.console.watched_cluster import WatchedCluster
from isotherm.console.watched_metrics import MetricsLook, WatchedMetrics
from isotherm.errors import IsothermError
from isotherm.storage_view.cluster_storage import (
    ClusterStorage,
    Histories,
    PartitionStorage,
)
from isotherm.storage_view.group_reader import GroupState
from isotherm.storage_view.record_sources import RecordSource
from isotherm.storage_view.segment_facts import segment_facts
from isotherm.types import uuid_from_text

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from isotherm.clock import Clock
    from isotherm.remote.storage.layout.segment_layout import Layout
    from isotherm.storage_view.copy_signs import CopySigns
    from isotherm.storage_view.prices import PriceList
    from isotherm.storage_view.registered_values import RegisteredValues
    from isotherm.storage_view.rows import Row

STATIC = Path(__file__).parent / "static"
UNAUTHORIZED = 401
_CHALLENGE = {"www-authenticate": 'Basic realm="console", charset="UTF-8"'}
_BUSY = 429
_UPSTREAM_FAILED = 502
_COLUMNS_DEFAULT = 600
_GZIP_BYTES_MIN = 1024
_GZIP_LEVEL = 1  # 110 KB of a map take 0.4 ms instead of 7, and 10 KB instead of 8
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """`hosts` are the host names that a request may have. Pages show `sweep_command` for users to
    copy, and other commands with `client_arguments`, which name the cluster and hold no secret.
    `credentials` has passwords by name; with None there is no login."""

    prices: PriceList
    layout: Layout
    hosts: Sequence[str]
    sweep_command: str
    client_arguments: str
    credentials: Mapping[bytes, bytes] | None
    metrics: WatchedMetrics
    clock: Clock
    registered: RegisteredValues | None = None
    tables: TableReader | None = None


def console_app(
    cluster: WatchedCluster,
    records: RecordSource,
    settings: ConsoleSettings,
    reports: JobReports,
    runner: JobRunner | None = None,
) -> Starlette:
    """The application. With a `runner` pages can start its jobs; without one they only read."""
    browser = RecordBrowser(records, cluster.segment_metadata, settings.registered)
    pages = _Pages(cluster, browser, settings)
    record_pages = RecordPages(cluster, browser, records, settings.clock)
    return Starlette(
        routes=[
            Route("/", _index),
            Route("/api/", _api_page),
            Route("/api/openapi.json", _openapi),
            Route("/api/console", pages.facts),
            Route("/api/overview", pages.overview),
            Route("/api/answers", pages.answers),
            Route("/api/topics/{topic}", pages.topic),
            Route("/api/topics/{topic}/map", pages.tier_map),
            Route("/api/topics/{topic}/history", pages.history),
            Route("/api/topics/{topic}/partitions/{partition}/segments/{id}", pages.segment),
            Route("/api/groups", pages.groups),
            Route("/api/groups/{group:path}", pages.group),
            *DetailPages(cluster, settings.metrics).routes(),
            *BrokerPages(cluster, settings.metrics).routes(),
            *TablePages(cluster, settings.tables, settings.clock).routes(),
            *record_pages.routes(),
            *job_routes(reports, runner),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={HTTPException: _problem, Exception: _failure},
        middleware=[
            # DNS rebinding: a website whose name points to this address sends requests with its own
            # name.
            Middleware(TrustedHostMiddleware, allowed_hosts=list(settings.hosts)),
            Middleware(_SafeHeaders),
            Middleware(_Login, credentials=settings.credentials, logins=HttpLogins(settings.clock)),
            Middleware(GZipMiddleware, minimum_size=_GZIP_BYTES_MIN, compresslevel=_GZIP_LEVEL),
        ],
    )


class _SafeHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                # The browser revalidates each file, so that an upgrade takes effect. An unchanged
                # file is a 304.
                headers.setdefault("cache-control", "no-cache")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class _Login:
    """HTTP basic authentication. The browser asks for a name and a password, and remembers them."""

    def __init__(
        self, app: ASGIApp, credentials: Mapping[bytes, bytes] | None, logins: HttpLogins
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._logins = logins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app
        if scope["type"] == "http" and self._credentials is not None:
            result = self._attempt(scope, self._credentials)
            if not result.is_granted:
                answer = _login_refusal(result)
        await answer(scope, receive, send)

    def _attempt(self, scope: Scope, credentials: Mapping[bytes, bytes]) -> LoginResult:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return LoginResult(is_granted=False)
        host, _ = scope.get("client") or ("", 0)
        return self._logins.attempt(token.strip().encode("latin-1"), credentials, host)


def _login_refusal(result: LoginResult) -> Response:
    if result.wait_s == 0:
        text = "a name and a password are needed"
        return JSONResponse({"error": text}, UNAUTHORIZED, _CHALLENGE)
    text = f"too many failed logins: try again in {result.wait_s} s"
    return JSONResponse({"error": text}, _BUSY, {"retry-after": str(result.wait_s)})


def _index(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


def _api_page(_: Request) -> Response:
    return FileResponse(STATIC / "api.html")


def _openapi(_: Request) -> Response:
    return JSONResponse(openapi_document())


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == NOT_FOUND and is_for_a_person(request):
        return HTMLResponse(missing_page(request), error.status_code)
    return JSONResponse({"error": error.detail}, error.status_code)


async def _failure(_: Request, __: Exception) -> Response:
    """The answer after an unexpected error. The server logs the error."""
    return JSONResponse({"error": "the console failed: its log has the reason"}, 500, _HEADERS)


class _Pages:
    """The handlers of requests.

    They are plain functions, so the server calls each in a thread, and may block.
    """

    def __init__(
        self, cluster: WatchedCluster, browser: RecordBrowser, settings: ConsoleSettings
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._browser = browser

    def facts(self, _: Request) -> Response:
        arguments = self._settings.client_arguments
        return JSONResponse({"version": __version__, "client_arguments": arguments})

    def overview(self, _: Request) -> Response:
        metrics = self._settings.metrics.look()
        signs = self._copy_signs(metrics)
        return self._answer(
            lambda storage: {
                **overview(storage, self._settings.prices, metrics),
                "problems": storage_problems(storage, signs),
            }
        )

    def answers(self, _: Request) -> Response:
        settings = self._settings
        signs = self._copy_signs(settings.metrics.look())
        look = self._cluster.groups()
        reading = group_reading(self._cluster, settings.metrics)
        return self._answer(
            lambda storage: {
                **topic_answers(storage, settings.prices, settings.sweep_command, signs),
                "groups": group_answers(look.content or (), storage, reading),
                "groups_error": look.error if look.content is None else None,
            }
        )

    def _copy_signs(self, metrics: MetricsLook | None) -> Mapping[str, CopySigns]:
        return {} if metrics is None else metrics.copy_signs

    def _price(self, storage: ClusterStorage) -> float:
        return self._settings.prices.mean_price(storage.remote_bytes)

    def topic(self, request: Request) -> Response:
        metrics = self._settings.metrics.look()
        signs = self._copy_signs(metrics)
        return self._answer(
            lambda storage: {
                **topic_detail(named_topic(storage, request), self._price(storage), metrics),
                "problems": topic_problems(
                    named_topic(storage, request), storage.read_at_ms, signs
                ),
                "reads_bucket": self._browser.reads_bucket,
            }
        )

    def tier_map(self, request: Request) -> Response:
        columns = number(request, "columns", _COLUMNS_DEFAULT, most=COLUMNS_MAX, least=1)
        first_partition = number(request, "partition", 0)
        count = number(request, "partitions", PARTITIONS_MAX, most=PARTITIONS_MAX, least=1)
        first, end = optional_number(request, "first"), optional_number(request, "end")
        if first is not None and end is not None and first >= end:
            raise HTTPException(400, "first must be below end")
        at_ms = optional_number(request, "at")

        def maps(storage: ClusterStorage) -> Row:
            partitions = named_topic(storage, request).partitions
            chosen = partitions[first_partition : first_partition + count]
            if at_ms is None:
                drawn = tier_maps(chosen, storage.read_at_ms, columns, (first, end))
            else:
                histories = self._histories(storage, chosen)
                if histories is None:
                    raise HTTPException(
                        NOT_FOUND, "no topic of the cluster has the events of segments"
                    )
                drawn = past_tier_maps(chosen, histories, at_ms, columns, (first, end))
            return {
                "topic": request.path_params["topic"],
                "partitions": len(partitions),
                "at_ms": at_ms,
                "maps": drawn,
            }

        return self._answer(maps)

    def history(self, request: Request) -> Response:
        first = number(request, "partition", 0)
        count = number(request, "partitions", PARTITIONS_MAX, most=PARTITIONS_MAX, least=1)

        def reach(storage: ClusterStorage) -> Row:
            chosen = named_topic(storage, request).partitions[first : first + count]
            return history_reach(self._histories(storage, chosen), storage.read_at_ms)

        return self._answer(reach)

    def _histories(
        self, storage: ClusterStorage, partitions: Sequence[PartitionStorage]
    ) -> Histories | None:
        try:
            places = [partition.state.partition for partition in partitions]
            return self._cluster.histories(storage, places)
        except IsothermError as error:
            raise HTTPException(_UPSTREAM_FAILED, str(error)) from error

    def groups(self, _: Request) -> Response:
        listed = self._groups()
        reading = group_reading(self._cluster, self._settings.metrics)
        return self._answer(lambda storage: {"groups": group_rows(listed, storage, reading)})

    def group(self, request: Request) -> Response:
        name = request.path_params["group"]
        group = next(
            (candidate for candidate in self._groups() if candidate.group_id == name), None
        )
        if group is None:
            raise HTTPException(NOT_FOUND, f"no such group: {name}")
        reading = group_reading(self._cluster, self._settings.metrics)
        members = members_row(self._cluster.members(group))
        deliveries = (
            {"deliveries": None}
            if group.share is None
            else deliveries_row(
                group, self._cluster.deliveries(group), self._settings.metrics.look()
            )
        )

        def detail(storage: ClusterStorage) -> Row:
            row = group_detail(group, storage, reading)
            return {**row, **members, **deliveries, "by_topic": topic_lags(row["by_partition"])}

        return self._answer(detail)

    def _groups(self) -> list[GroupState]:
        look = self._cluster.groups()
        if look.content is None:
            raise HTTPException(UNAVAILABLE, look.error)
        return look.content

    def segment(self, request: Request) -> Response:
        def facts(storage: ClusterStorage) -> Row:
            partition = _partition(storage, request)
            segment = self._cluster.segment_metadata(partition, _segment_id(request).bytes)
            if segment is None:
                raise HTTPException(
                    NOT_FOUND, "no such segment: it may have been deleted meanwhile"
                )
            return segment_facts(segment, self._settings.layout)

        return self._answer(facts)

    def _answer(self, content: Callable[[ClusterStorage], Row]) -> Response:
        """The answer with `content`. If the cluster does not answer now, `error` has the reason,
        and the content is that of the last successful read."""
        storage, error = newest_storage(self._cluster)
        return reply(storage, error, content(storage))


def _partition(storage: ClusterStorage, request: Request) -> PartitionStorage:
    number = request.path_params["partition"]
    for partition in named_topic(storage, request).partitions:
        if str(partition.state.partition.partition) == number:
            return partition
    raise HTTPException(NOT_FOUND, f"no such partition: {number}")


def _segment_id(request: Request) -> uuid.UUID:
    try:
        return uuid_from_text(request.path_params["id"])
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
