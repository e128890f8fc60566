"""What keeps deleted objects: a store is asked, and what it does not tell is not known."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from isotherm.clock import SystemClock
from isotherm.remote.storage.bucket_protection import (
    NOT_KNOWN,
    OFF,
    ON,
    SUSPENDED,
    BucketProtection,
    SigningKeys,
    read_protection,
    signed_headers,
)
from isotherm.remote.storage.settings import ObjectStoreSettings
from tests.support.s3_server import S3Server, find_versitygw

NO_REPLICATION = (404, "<Error><Code>ReplicationConfigurationNotFoundError</Code></Error>")
NO_LOCK = (404, "<Error><Code>ObjectLockConfigurationNotFoundError</Code></Error>")
DENIED = (403, "<Error><Code>AccessDenied</Code></Error>")


def versioning(status: str) -> tuple[int, str]:
    return 200, f"<VersioningConfiguration>{status}</VersioningConfiguration>"


@contextmanager
def store(answers: Mapping[str, tuple[int, str]]) -> Iterator[ObjectStoreSettings]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, question = self.path.partition("?")
            assert path == "/b"
            status, body = answers[question]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield ObjectStoreSettings(
            url="s3://b/kafka",
            s3_endpoint_url=f"http://127.0.0.1:{server.server_port}",
            s3_path_style_access_enabled=True,
            aws_access_key_id="k",
            aws_secret_access_key="s",
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_signature_is_that_of_the_example_of_aws() -> None:
    """GET Bucket Lifecycle, on the page of signed_headers."""
    keys = SigningKeys(
        "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", None, "us-east-1"
    )
    host = "examplebucket.s3.amazonaws.com"
    headers = signed_headers(keys, host, "/", "lifecycle", 1_369_353_600_000)
    assert headers["authorization"].rpartition("=")[2] == (
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
    )


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((versioning(""), NO_REPLICATION, NO_LOCK), (OFF, OFF, OFF)),
        ((versioning("<Status>Enabled</Status>"), NO_REPLICATION, NO_LOCK), (ON, OFF, OFF)),
        (
            (
                versioning("<Status>Suspended</Status>"),
                (200, "<ReplicationConfiguration/>"),
                (200, "<ObjectLockEnabled>Enabled</ObjectLockEnabled>"),
            ),
            (SUSPENDED, ON, ON),
        ),
        ((DENIED, DENIED, DENIED), (NOT_KNOWN, NOT_KNOWN, NOT_KNOWN)),
        (((200, "<html/>"), (501, ""), (404, "")), (NOT_KNOWN, NOT_KNOWN, NOT_KNOWN)),
    ],
)
def test_state_is_what_the_store_tells(
    answers: tuple[tuple[int, str], ...], expected: tuple[str, str, str]
) -> None:
    questions = ("versioning", "replication", "object-lock")
    with store(dict(zip(questions, answers, strict=True))) as settings:
        seen = read_protection(settings, 0)
    assert (seen.versioning, seen.replication, seen.object_lock) == expected
    assert bool(seen.lines()) == (expected != (OFF, OFF, OFF))
    assert ("not known" in "".join(seen.lines())) == (NOT_KNOWN in expected)


def test_stores_that_cannot_be_asked_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for url in ("s3://b", "gs://b"):
        assert read_protection(ObjectStoreSettings(url=url), 0) == BucketProtection()
    with store({}) as settings:
        pass
    assert read_protection(settings, 0) == BucketProtection()
    folder = read_protection(ObjectStoreSettings(url=tmp_path.as_uri()), 0)
    assert not folder.lines()


@pytest.mark.skipif(find_versitygw() is None, reason="no versitygw: scripts/s3-server.sh install")
def test_a_real_server_accepts_the_signature(tmp_path: Path) -> None:
    binary = find_versitygw()
    assert binary is not None
    with S3Server(binary, tmp_path / "s3") as server:
        settings = ObjectStoreSettings.from_config(server.config)
        now_ms = SystemClock().now_ms()
        seen = read_protection(settings, now_ms)
        refused = read_protection(replace(settings, aws_secret_access_key="wrong"), now_ms)
    # It says of locks alone that there is none.
    assert seen == BucketProtection(object_lock=OFF)
    assert refused == BucketProtection()
