"""An S3 server in memory with injected faults, down to the bytes on the wire.

    with S3Stub() as stub:
        stub.fail(WireFault.LOST_REPLY, "PUT", suffix=".log", times=1)

It supports the requests of a storage manager: objects, ranges, multipart uploads, deletions and
listings. It checks no signatures. For measurements, and for S3's behaviour, use `versitygw`
(tests.support.s3_server).
"""

from __future__ import annotations

import contextlib
import enum
import html
import itertools
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.s3_listing import ListingFault, listing_page

BUCKET = "isotherm"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_DRIP_S = 0.2
_SLOW_S = 0.1


class WireFault(enum.Enum):
    """Faults of a request. Those without a body or range in their name apply to any request."""

    RESET_BEFORE = "connection closed before the request is read"
    RESET_MIDWAY = "connection closed after half of the request's body"
    RESET_UNSTORED = "connection closed after the whole request, nothing done"
    LOST_REPLY = "done, and the connection closed instead of an answer"
    SLOW_DOWN = "503 SlowDown"
    SLOW_DOWN_RETRY_AFTER = "503 SlowDown with Retry-After"
    INTERNAL_ERROR = "500 InternalError"
    ERROR_IN_200 = "200 with an error in its body"
    FULL = "507 InsufficientStorage"
    READ_ONLY = "403 AccessDenied"
    CLOCK_SKEW = "403 RequestTimeTooSkewed"
    EXPIRED = "403 ExpiredToken"
    PRECONDITION_FAILED = "412 PreconditionFailed"
    CONFLICT = "409 ConditionalRequestConflict"
    MOVED = "301 PermanentRedirect"
    REDIRECTED = "307 TemporaryRedirect to a port without a listener"
    NOT_FOUND = "404 NoSuchKey"
    SHORT_BODY = "fewer bytes than Content-Length says"
    RESET_MID_BODY = "connection reset after half of the body"
    WRONG_RANGE = "Content-Range of other bytes than were asked for"
    FULL_BODY = "200 with the whole object instead of 206"
    BIT_FLIP = "one bit of the body wrong"
    DRIP = "a byte at a time, slower than the request's deadline"
    SLOW = "taken a tenth of a second late"
    HELD = "taken only after `heal`"


_STATUS: dict[WireFault, tuple[int, str]] = {
    WireFault.SLOW_DOWN: (503, "SlowDown"),
    WireFault.SLOW_DOWN_RETRY_AFTER: (503, "SlowDown"),
    WireFault.INTERNAL_ERROR: (500, "InternalError"),
    WireFault.ERROR_IN_200: (200, "InternalError"),
    WireFault.FULL: (507, "InsufficientStorage"),
    WireFault.READ_ONLY: (403, "AccessDenied"),
    WireFault.CLOCK_SKEW: (403, "RequestTimeTooSkewed"),
    WireFault.EXPIRED: (403, "ExpiredToken"),
    WireFault.PRECONDITION_FAILED: (412, "PreconditionFailed"),
    WireFault.CONFLICT: (409, "ConditionalRequestConflict"),
    WireFault.MOVED: (301, "PermanentRedirect"),
    WireFault.REDIRECTED: (307, "TemporaryRedirect"),
    WireFault.NOT_FOUND: (404, "NoSuchKey"),
}


@dataclass(slots=True, eq=False)
class _Rule:
    fault: WireFault | ListingFault
    method: str
    suffix: str
    times: int | None
    query: str | None
    skipped: int


class S3Stub:
    """Serves from `__enter__` to `__exit__`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, bytes] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._rules: list[_Rule] = []
        self._upload_ids = itertools.count(1)
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._port = 0
        self._healed = threading.Event()
        self.list_page_size = 1000
        self.faults: list[tuple[WireFault | ListingFault, str, str]] = []
        """The injected faults: fault, method and key."""
        self.requests: list[tuple[str, str]] = []

    @property
    def config(self) -> dict[str, str]:
        """The `rsm.config.` keys that reach this server; failures show at once."""
        return {
            "url": f"s3://{BUCKET}",
            "s3.endpoint.url": f"http://127.0.0.1:{self._port}",
            "s3.region": "us-east-1",
            "aws.access.key.id": "stub",
            "aws.secret.access.key": "stub",
            "retries": "0",
            "retry.backoff.ms": "1",
            "retry.backoff.max.ms": "5",
        }

    def fail(
        self,
        fault: WireFault | ListingFault,
        method: str,
        *,
        suffix: str = "",
        times: int | None = None,
        query: str | None = None,
        skipped: int = 0,
    ) -> None:
        """Inject the fault into requests of this method on keys with this suffix: `times` of them,
        or all, after the first `skipped`.

        `query` also asks for a parameter: `partNumber`, `uploadId`, `uploads`, `list-type`. A page
        of a listing is a GET with `list-type`, and the only request that can meet a ListingFault.
        """
        with self._lock:
            self._rules.append(_Rule(fault, method, suffix, times, query, skipped))
            if fault is WireFault.HELD:
                self._healed = threading.Event()

    def heal(self) -> None:
        with self._lock:
            self._rules.clear()
            self._healed.set()

    def wait_healed(self) -> None:
        self._healed.wait()

    def objects(self) -> dict[str, bytes]:
        with self._lock:
            return dict(self._objects)

    def unfinished_uploads(self) -> int:
        with self._lock:
            return len(self._uploads)

    def put_object(self, key: str, content: bytes) -> None:
        """Put an object past the storage manager."""
        with self._lock:
            self._objects[key] = content

    def __enter__(self) -> Self:
        self.accept()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.refuse()

    def accept(self) -> None:
        """Listen, on the same port as before."""
        stub = self

        class Handler(_Handler):
            store = stub

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def refuse(self) -> None:
        """Close the listening socket, so that connections are refused."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None

    # Called by the handlers

    def next_fault(
        self, method: str, key: str, query: Mapping[str, list[str]]
    ) -> WireFault | ListingFault | None:
        with self._lock:
            self.requests.append((method, key))
            for rule in self._rules:
                if (
                    rule.method == method
                    and key.endswith(rule.suffix)
                    and (rule.query is None or rule.query in query)
                    and rule.times != 0
                ):
                    if rule.skipped > 0:
                        rule.skipped -= 1
                        continue
                    if rule.times is not None:
                        rule.times -= 1
                    self.faults.append((rule.fault, method, key))
                    return rule.fault
            return None

    def get(self, key: str) -> bytes | None:
        with self._lock:
            return self._objects.get(key)

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def begin_upload(self) -> str:
        with self._lock:
            upload_id = f"upload-{next(self._upload_ids)}"
            self._uploads[upload_id] = {}
            return upload_id

    def put_part(self, upload_id: str, number: int, content: bytes) -> None:
        with self._lock:
            self._uploads[upload_id][number] = content

    def complete_upload(self, upload_id: str, key: str) -> None:
        with self._lock:
            parts = self._uploads.pop(upload_id)
            self._objects[key] = b"".join(parts[number] for number in sorted(parts))

    def abort_upload(self, upload_id: str) -> None:
        with self._lock:
            self._uploads.pop(upload_id, None)


_ANSWERED: Any = object()
_NO_HEADERS: Mapping[str, str] = {}
_ETAG = {"ETag": '"etag"'}
_MODIFIED = {"Last-Modified": "Sat, 01 Jan 2022 00:00:00 GMT"}
_RESETS = (WireFault.RESET_BEFORE, WireFault.RESET_MIDWAY, WireFault.RESET_UNSTORED)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms for the head's acknowledgement
    store: S3Stub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Log nothing: tests inject the errors on purpose."""

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def do_PUT(self) -> None:
        key, query = self._target()
        fault = self._met("PUT", key, query)
        if fault is _ANSWERED:
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "partNumber" in query:
            self.store.put_part(query["uploadId"][0], int(query["partNumber"][0]), body)
        else:
            self.store.put_object(key, body)
        self._answer(200, b"", fault, _ETAG)

    def do_POST(self) -> None:
        key, query = self._target()
        if "delete" in query:
            self._delete_many(query)
            return
        fault = self._met("POST", key, query)
        if fault is _ANSWERED:
            return
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "uploads" in query:
            text = f"<UploadId>{self.store.begin_upload()}</UploadId>"
            body = f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>"
        else:
            self.store.complete_upload(query["uploadId"][0], key)
            body = (
                "<CompleteMultipartUploadResult><ETag>etag</ETag></CompleteMultipartUploadResult>"
            )
        self._answer(200, body.encode(), fault)

    def _delete_many(self, query: dict[str, list[str]]) -> None:
        """A bulk deletion counts as a DELETE of its first key; its answer names each key."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        keys = [html.unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", body.decode())]
        fault = self._met("DELETE", keys[0], query, body_is_read=True)
        if fault is _ANSWERED:
            return
        for key in keys:
            self.store.delete(key)
        deleted = "".join(f"<Deleted><Key>{html.escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), fault)

    def do_DELETE(self) -> None:
        key, query = self._target()
        fault = self._met("DELETE", key, query)
        if fault is _ANSWERED:
            return
        if "uploadId" in query:
            self.store.abort_upload(query["uploadId"][0])
        else:
            self.store.delete(key)
        self._answer(204, b"", fault)

    def do_HEAD(self) -> None:
        key, query = self._target()
        fault = self._met("HEAD", key, query)
        content = self.store.get(key)
        if fault is not _ANSWERED:
            self._answer(404 if content is None else 200, content or b"", fault, with_body=False)

    def do_GET(self) -> None:
        key, query = self._target()
        fault = self._met("GET", key, query)
        if fault is _ANSWERED:
            return
        if "list-type" in query:
            self._list(query, fault)
            return
        content = self.store.get(key)
        if content is None:
            self._answer(404, _error("NoSuchKey"), fault)
            return
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked is None or fault is WireFault.FULL_BODY:
            self._answer(200, content, fault, {**_ETAG, **_MODIFIED})
            return
        start = int(asked[1])
        end = min(int(asked[2]) + 1 if asked[2] else len(content), len(content))
        if start >= len(content):
            self._answer(416, _error("InvalidRange"), fault)
            return
        shown = start + 1 if fault is WireFault.WRONG_RANGE else start
        shown_end = shown + end - start
        self._answer(
            206,
            content[start:end],
            fault,
            {
                "Content-Range": f"bytes {shown}-{shown_end - 1}/{len(content)}",
                **_ETAG,
                **_MODIFIED,
            },
        )

    def _list(self, query: dict[str, list[str]], fault: Any) -> None:
        page = listing_page(
            {key: len(content) for key, content in self.store.objects().items()},
            prefix=query.get("prefix", [""])[0],
            delimiter=query.get("delimiter", [""])[0],
            after=query.get("continuation-token", query.get("start-after", [""]))[0],
            page_size=self.store.list_page_size,
            fault=fault if isinstance(fault, ListingFault) else None,
        )
        self._answer(200, page.encode(), fault if isinstance(fault, WireFault) else None)

    def _target(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
        return key, parse_qs(parts.query, keep_blank_values=True)

    def _met(
        self, method: str, key: str, query: dict[str, list[str]], *, body_is_read: bool = False
    ) -> Any:
        """The fault of this request; _ANSWERED if the fault has already answered it."""
        fault = self.store.next_fault(method, key, query)
        length = 0 if body_is_read else int(self.headers.get("Content-Length", 0))
        if fault is WireFault.SLOW:
            threading.Event().wait(_SLOW_S)
        if fault is WireFault.HELD:
            self.store.wait_healed()
        if fault in _RESETS:
            # RESET_UNSTORED reads the whole body and stores nothing.
            share = {WireFault.RESET_BEFORE: 0, WireFault.RESET_MIDWAY: length // 2}
            self.rfile.read(share.get(fault, length))
            self.close_connection = True
            return _ANSWERED
        if fault in _STATUS and fault is not None:
            self.rfile.read(length)
            status, code = _STATUS[fault]
            headers = {"Retry-After": "1"} if fault is WireFault.SLOW_DOWN_RETRY_AFTER else {}
            if fault is WireFault.ERROR_IN_200 and "delete" in query:
                error = f"<Error><Key>{html.escape(key)}</Key><Code>{code}</Code></Error>"
                self._answer(200, f"<DeleteResult>{error}</DeleteResult>".encode(), None)
                return _ANSWERED
            if fault in (WireFault.MOVED, WireFault.REDIRECTED):
                headers = {"Location": f"http://127.0.0.1:1/{BUCKET}/{key}"}
            self._answer(status, b"" if method == "HEAD" else _error(code), None, headers)
            return _ANSWERED
        return fault

    def _answer(
        self,
        status: int,
        body: bytes,
        fault: WireFault | None,
        headers: Mapping[str, str] = _NO_HEADERS,
        *,
        with_body: bool = True,
    ) -> None:
        if fault is WireFault.LOST_REPLY:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not with_body:
            return
        if fault is WireFault.BIT_FLIP and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if fault in (WireFault.SHORT_BODY, WireFault.RESET_MID_BODY):
            # Content-Length is already sent, so the client sees a truncated body.
            body = body[: len(body) - 1 if fault is WireFault.SHORT_BODY else len(body) // 2]
            self.close_connection = True
        if fault is WireFault.DRIP:
            self._drip(body)
            return
        self.wfile.write(body)

    def _drip(self, body: bytes) -> None:
        pause = threading.Event()
        for byte in body[:50]:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            pause.wait(_DRIP_S)
        self.close_connection = True


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
