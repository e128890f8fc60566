"""The requests for messages of a whole topic: steps of a search, a live tail, and a download."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from isotherm.console.live_tail import (
    TAIL_IDLE_S,
    TAIL_INTERVAL_S,
    TAILS_AT_ONCE,
    LiveTail,
)
from isotherm.console.openapi import (
    DOWNLOAD_RECORDS_MAX,
    FOUND_MAX,
    NUMBER_MAX,
    PARTITIONS_MAX,
    RECORD_ORDERS,
    RECORD_SOURCES,
)
from isotherm.console.query import number, optional_number, text
from isotherm.console.records import (
    OffsetRange,
    RangeStep,
    RecordBrowser,
    TooManyScansError,
    TopicSearch,
)
from isotherm.console.replies import NOT_FOUND, named_topic, newest_storage, reply
from isotherm.errors import InvalidRequestError, IsothermError
from isotherm.storage_view.json_condition import json_condition
from isotherm.storage_view.record_scan import RecordFilter

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from isotherm.clock import Clock
    from isotherm.console.watched_cluster import WatchedCluster
    from isotherm.storage_view.cluster_storage import ClusterStorage, TopicStorage
    from isotherm.storage_view.record_sources import RecordSource
    from isotherm.storage_view.rows import Row

FOUND_DEFAULT = 50
DOWNLOADS_AT_ONCE = 2
DOWNLOAD_FETCHED_BYTES_MAX = 256 * 1024 * 1024
_RANGE = re.compile(r"([0-9]{1,9})(?::([0-9]{1,19})(?::([0-9]{1,19}))?)?")
_BAD_REQUEST, _BUSY = 400, 429


class RecordPages:
    """The handlers. Except for `tail`, the server calls each in a thread, and it may block."""

    def __init__(
        self, cluster: WatchedCluster, browser: RecordBrowser, source: RecordSource, clock: Clock
    ) -> None:
        self._cluster = cluster
        self._browser = browser
        self._source = source
        self._clock = clock
        self._tails = threading.BoundedSemaphore(TAILS_AT_ONCE)
        self._downloads = threading.BoundedSemaphore(DOWNLOADS_AT_ONCE)

    def routes(self) -> list[Route]:
        return [
            Route("/api/topics/{topic}/records", self.records),
            Route("/api/topics/{topic}/tail", self.tail),
            Route("/api/topics/{topic}/download", self.download),
        ]

    def records(self, request: Request) -> Response:
        storage, error = newest_storage(self._cluster)
        topic = named_topic(storage, request)
        search = self._search(request, topic)
        try:
            steps = self._browser.topic_step(storage, topic, search)
        except TooManyScansError as busy:
            raise _busy("other pages are reading records: try again") from busy
        rows = self._browser.topic_rows(topic.state.name, steps)
        return reply(storage, error, rows)

    def _search(self, request: Request, topic: TopicStorage) -> TopicSearch:
        source, order = text(request, "from"), text(request, "order")
        if source not in ("", *RECORD_SOURCES):
            raise HTTPException(_BAD_REQUEST, f"from must be one of {', '.join(RECORD_SOURCES)}")
        if order not in ("", *RECORD_ORDERS):
            raise HTTPException(_BAD_REQUEST, f"order must be one of {', '.join(RECORD_ORDERS)}")
        if source == "bucket" and not self._browser.reads_bucket:
            raise HTTPException(_BAD_REQUEST, "the console knows no bucket: start it with --path")
        return TopicSearch(
            ranges=_ranges(request, topic),
            is_newest_first=order != "oldest",
            filter=_record_filter(request),
            found_max=number(request, "limit", FOUND_DEFAULT, least=1, most=FOUND_MAX),
            prefers_bucket=source == "bucket",
            first=optional_number(request, "first"),
            end=optional_number(request, "end"),
            since_ms=optional_number(request, "since"),
            until_ms_inclusive=optional_number(request, "until", most=NUMBER_MAX - 1),
        )

    async def tail(self, request: Request) -> Response:
        """Server-sent events. `records` has what is new, `end` the reason why no more will come."""
        storage, _ = await run_in_threadpool(newest_storage, self._cluster)
        topic = named_topic(storage, request)
        starts = {}
        for offset_range in _ranges(request, topic):
            start = offset_range.first
            if start is None:
                local = topic.partitions[offset_range.partition].state.local
                start = 0 if local is None else local.high_watermark
            starts[offset_range.partition] = start
        tail = LiveTail(self._browser, self._source, _record_filter(request), starts)
        if not self._tails.acquire(blocking=False):
            raise _busy(f"{TAILS_AT_ONCE} pages follow topics already: try again later")
        events = self._events(tail, topic.state.name)
        return _Stream(events, self._tails.release, "text/event-stream", {})

    async def _events(self, tail: LiveTail, name: str) -> AsyncIterator[str]:
        newest_s = self._clock.monotonic_s()
        yield _event("begin", {})
        while self._clock.monotonic_s() - newest_s < TAIL_IDLE_S:
            try:
                row = await run_in_threadpool(self._round, tail, name)
            except (IsothermError, HTTPException) as error:
                reason = error.detail if isinstance(error, HTTPException) else str(error)
                yield _event("end", {"reason": reason})
                return
            if row is None:
                yield ": nothing new\n\n"  # so that a page that is gone is noticed
            else:
                newest_s = self._clock.monotonic_s()
                yield _event("records", row)
        yield _event("end", {"reason": f"no new message for {TAIL_IDLE_S / 60:.0f} minutes"})

    def _pause(self) -> None:
        self._clock.wait(threading.Event(), TAIL_INTERVAL_S)

    def _round(self, tail: LiveTail, name: str) -> Row | None:
        self._pause()
        storage, _ = newest_storage(self._cluster)
        topic = storage.topics.get(name)
        if topic is None:
            raise HTTPException(NOT_FOUND, f"no such topic: {name}")
        try:
            return tail.round(storage, topic)
        except TooManyScansError:
            return None  # the next round reads what this one did not

    def download(self, request: Request) -> Response:
        """JSON lines, as `isotherm consume --json` prints them, partition by partition. The last
        line says whether they are all."""
        storage, _ = newest_storage(self._cluster)
        topic = named_topic(storage, request)
        search = self._search(request, topic)
        records_max = number(
            request, "records", DOWNLOAD_RECORDS_MAX, least=1, most=DOWNLOAD_RECORDS_MAX
        )
        if not self._downloads.acquire(blocking=False):
            raise _busy(f"{DOWNLOADS_AT_ONCE} downloads are in progress: try again")
        name = re.sub(r"[^A-Za-z0-9._-]", "_", topic.state.name)
        headers = {"content-disposition": f'attachment; filename="{name}.jsonl"'}
        left_out = len(topic.partitions) - len(search.ranges) if not text(request, "ranges") else 0
        lines = self._lines(storage, topic, search, records_max, left_out)
        return _Stream(lines, self._downloads.release, "application/x-ndjson", headers)

    async def _lines(
        self,
        storage: ClusterStorage,
        topic: TopicStorage,
        search: TopicSearch,
        records_max: int,
        partitions_left_out: int,
    ) -> AsyncIterator[str]:
        ranges, records, fetched, reason = list(search.ranges), 0, 0, None
        while ranges and reason is None:
            limit = min(FOUND_MAX, records_max - records)
            part = replace(search, ranges=[ranges[0]], found_max=limit)
            try:
                (step,) = await run_in_threadpool(self._browser.topic_step, storage, topic, part)
            except TooManyScansError:
                await run_in_threadpool(self._pause)
                continue
            for line in _json_lines(topic.state.name, step):
                yield line
            records += len(step.step.matches)
            fetched += sum(read.size_in_bytes for read in step.step.fetched)
            if step.left is None:
                ranges.pop(0)
            elif step.error is not None or str(step.left) == str(step.whole):
                reason = step.error or "the tier did not answer in time"
            else:
                ranges[0] = step.left
            if reason is None and ranges:
                if records == records_max:
                    reason = f"{records} records are the most of a download"
                elif fetched >= DOWNLOAD_FETCHED_BYTES_MAX:
                    reason = f"{fetched} bytes were read, the most of a download"
        if reason is None and partitions_left_out:
            reason = (
                f"the last {partitions_left_out} partitions are left out:"
                f" {PARTITIONS_MAX} are the most of a download, name them in ranges"
            )
        summary = {"records": records, "is_complete": reason is None, "reason": reason}
        yield json.dumps({"download": summary}) + "\n"


class _Stream(StreamingResponse):
    """Calls `release` once the stream has ended, also if it never began."""

    def __init__(
        self,
        content: AsyncIterator[str],
        release: Callable[[], None],
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


def _event(name: str, content: Row) -> str:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n"


def _json_lines(topic: str, step: RangeStep) -> Iterator[str]:
    for match in step.step.matches:
        record = match.record
        headers = []
        for name, content in record.headers:
            shown, encoding = _encoded(content)
            headers.append({"key": name, "value": shown, "encoding": encoding})
        key, key_encoding = _encoded(record.key)
        value, value_encoding = _encoded(record.value)
        row: dict[str, Any] = {
            "topic": topic,
            "partition": step.whole.partition,
            "offset": record.offset,
            "ts": record.timestamp_ms,
            "key": key,
            "key_encoding": key_encoding,
            "value": value,
            "value_encoding": value_encoding,
            "headers": headers,
        }
        yield json.dumps(row, ensure_ascii=False) + "\n"


def _encoded(data: bytes | None) -> tuple[str | None, str | None]:
    """The bytes as text, and how the text becomes the bytes again."""
    if data is None:
        return None, None
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii"), "base64"


def _ranges(request: Request, topic: TopicStorage) -> list[OffsetRange]:
    """The parameter `ranges`; all partitions without it, at most PARTITIONS_MAX."""
    partitions = {partition.state.partition.partition for partition in topic.partitions}
    ranges_text = text(request, "ranges")
    if not ranges_text:
        return [OffsetRange(partition) for partition in sorted(partitions)[:PARTITIONS_MAX]]
    ranges = []
    for range_text in ranges_text.split(","):
        match = _RANGE.fullmatch(range_text)
        if match is None:
            raise HTTPException(
                _BAD_REQUEST, f"ranges must be like 0,1:500,2:500:900, and has {range_text!r}"
            )
        partition, first, end = (None if part is None else int(part) for part in match.groups())
        if partition is None or partition not in partitions:
            raise HTTPException(NOT_FOUND, f"no such partition: {partition}")
        if any(bound is not None and bound > NUMBER_MAX for bound in (first, end)):
            raise HTTPException(_BAD_REQUEST, f"an offset must be at most {NUMBER_MAX}")
        ranges.append(OffsetRange(partition, first, end))
    if len(ranges) > PARTITIONS_MAX or len(
        {offset_range.partition for offset_range in ranges}
    ) < len(ranges):
        raise HTTPException(
            _BAD_REQUEST, f"ranges must name at most {PARTITIONS_MAX} partitions, each once"
        )
    return ranges


def _record_filter(request: Request) -> RecordFilter:
    condition = text(request, "where")
    try:
        return RecordFilter(
            key=text(request, "key").encode(),
            value=text(request, "value").encode(),
            header_name=text(request, "header"),
            header_value=text(request, "header_value").encode(),
            condition=json_condition(condition) if condition else None,
        )
    except InvalidRequestError as error:
        raise HTTPException(_BAD_REQUEST, str(error)) from error


def _busy(reason: str) -> HTTPException:
    return HTTPException(_BUSY, reason)
