"""The check of a store at the start, with an S3 stub that fails as each test sets.

tests/fault/test_unusable_bucket.py uses real servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.errors import ConfigError, RemoteResourceNotFoundError, RemoteStorageError
from isotherm.remote.storage import store_check
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.storage.store_check import check_store
from isotherm.remote.storage.store_reasons import is_absence, known_reason, store_reason
from tests.support.s3_stub import S3Stub, WireFault


@pytest.fixture
def stub() -> Iterator[S3Stub]:
    with S3Stub() as running:
        yield running


def settings(stub: S3Stub, **config: str) -> ObjectStoreSettings:
    return ObjectStoreSettings.from_config(stub.config | config)


@pytest.mark.parametrize(
    ("prefix", "directory"),
    [
        ("", "isotherm-check/"),
        ("name-", "isotherm-check/"),
        ("folder/", "folder/isotherm-check/"),
        ("folder/inner/name-", "folder/inner/isotherm-check/"),
    ],
)
def test_object_of_the_check_is_in_the_folder_of_the_segments(
    stub: S3Stub, prefix: str, directory: str
) -> None:
    put_ms = check_store(settings(stub, **{"key.prefix": prefix}), writes=True)
    asked = [(method, key.rpartition("/")[0] + "/") for method, key in stub.requests if key]
    assert asked == [(method, directory) for method in ("PUT", "GET", "DELETE")]
    assert len({key for _, key in stub.requests if key}) == 1
    assert put_ms is not None
    assert stub.objects() == {}


def test_reader_puts_and_deletes_nothing(stub: S3Stub) -> None:
    assert check_store(settings(stub), writes=False) is None
    assert [method for method, _ in stub.requests] == ["GET", "GET"]


@pytest.mark.parametrize(
    ("method", "fault", "kind", "words"),
    [
        ("PUT", WireFault.READ_ONLY, ConfigError, r"access denied .* operation=put"),
        ("GET", WireFault.READ_ONLY, ConfigError, r"access denied .* operation=get"),
        ("DELETE", WireFault.READ_ONLY, ConfigError, r"access denied .* operation=delete"),
        ("PUT", WireFault.SLOW_DOWN, RemoteStorageError, r"throttled \(SlowDown\) operation=put"),
        ("GET", WireFault.NOT_FOUND, RemoteStorageError, "an object was put and is missing"),
        ("GET", WireFault.BIT_FLIP, RemoteStorageError, "has other bytes .* operation=get"),
    ],
)
def test_each_step_is_tried_once_and_named(
    stub: S3Stub, method: str, fault: WireFault, kind: type[Exception], words: str
) -> None:
    stub.fail(fault, method)
    with pytest.raises(kind, match=words) as refused:
        check_store(settings(stub), writes=True)
    assert type(refused.value) is kind
    assert f"url={stub.config['url']} endpoint={stub.config['s3.endpoint.url']}" in str(
        refused.value
    )
    assert [each for each, _ in stub.requests].count(method) == 1


@pytest.mark.parametrize("asked_ms", [5, 60_000])
def test_check_waits_no_longer_than_its_own_limit(
    stub: S3Stub, asked_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[ObjectStoreSettings] = []

    def opening(asked: ObjectStoreSettings, *, create_folder: bool) -> object:
        opened.append(asked)
        return open_object_store(
            replace(asked, request_timeout_ms=10_000), create_folder=create_folder
        )

    monkeypatch.setattr(store_check, "open_object_store", opening)
    limited = replace(
        settings(stub), request_timeout_ms=asked_ms, upload_rate_limit_bytes_per_second=1
    )
    check_store(limited, writes=True)
    (once,) = opened
    assert (once.retries, once.upload_rate_limit_bytes_per_second) == (0, None)
    assert once.request_timeout_ms == min(asked_ms, 10_000)


def test_folder_and_memory_are_not_asked(tmp_path: Path) -> None:
    for url in ((tmp_path / "missing").as_uri(), "memory://"):
        assert check_store(ObjectStoreSettings.from_config({"url": url}), writes=True) is None
    assert list(tmp_path.iterdir()) == []


# ---- the reason in one line


def s3_text(status: str, code: str) -> str:
    """The text of obstore's error for an S3 response."""
    return (
        f"The operation failed: Server returned non-2xx status code: {status}: <?xml"
        ' version="1.0"?>\n'
        f"<Error><Code>{code}</Code><Message>words</Message></Error>\n\nDebug source:\n..."
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(s3_text("403 Forbidden", "AccessDenied")), "access denied (AccessDenied)"),
        (OSError(s3_text("401 Unauthorized", "Odd")), "access denied (Odd)"),
        (OSError(s3_text("404 Not Found", "NoSuchBucket")), "bucket not found (NoSuchBucket)"),
        (OSError(s3_text("503 Slow", "SlowDown")), "throttled (SlowDown)"),
        (OSError(s3_text("429 Too many", "Odd")), "throttled (Odd)"),
        (OSError(s3_text("400 Bad Request", "EntityTooLarge")), "EntityTooLarge"),
        (
            OSError("error trying to connect: tcp connect error: Connection refused"),
            "connection refused",
        ),
        (OSError("dns error: failed to lookup address information"), "no such host"),
        (OSError("operation timed out"), "no answer in time"),
        (
            OSError("invalid peer certificate: InvalidCertificate(UnknownIssuer)"),
            "certificate not trusted",
        ),
        (OSError("http://169.254.169.254/latest/api/token timed out"), "no credentials"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (
            OSError(s3_text("507 Insufficient Storage", "InsufficientStorage")),
            "No space left on device (InsufficientStorage)",
        ),
        (OSError(30, "Read-only file system"), "Read-only file system"),
        (ValueError("first\nsecond"), "first"),
        (ValueError("x" * 300), "x" * 200),
        (ValueError(""), "ValueError"),
    ],
)
def test_reason_is_one_line(error: Exception, reason: str) -> None:
    found = store_reason(error)
    assert found == reason or found.startswith(f"{reason}: ")


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        (s3_text("404 Not Found", "NoSuchKey"), True),
        (s3_text("404 Not Found", "BlobNotFound"), True),
        (s3_text("404 Not Found", "NoSuchBucket"), False),
        (s3_text("404 Not Found", "XAdminUserNotFound"), False),
        ("Object at location a/b not found", True),
        ("The specified bucket does not exist", False),
    ],
)
def test_missing_bucket_or_user_is_no_missing_object(text: str, absent: bool) -> None:
    assert is_absence(FileNotFoundError(text)) is absent


def test_bucket_that_is_gone_is_no_deleted_object(stub: S3Stub) -> None:
    asked = settings(stub)
    client = ObjectClient(asked, open_object_store(asked, create_folder=False))
    with pytest.raises(RemoteResourceNotFoundError):
        client.get("missing", 10)


@pytest.mark.parametrize(
    ("url", "config", "expected"),
    [
        (
            "s3://bucket",
            {
                "s3.region": "eu",
                "s3.endpoint.url": "http://host:1",
                "aws.access.key.id": "id",
                "aws.secret.access.key": "secret",
                "s3.path.style.access.enabled": "true",
            },
            {
                "bucket": "bucket",
                "region": "eu",
                "endpoint": "http://host:1",
                "access_key_id": "id",
                "secret_access_key": "secret",
                "virtual_hosted_style_request": "false",
            },
        ),
        (
            "s3a://bucket",
            {"s3.path.style.access.enabled": "false"},
            {"bucket": "bucket", "virtual_hosted_style_request": "true"},
        ),
        (
            "az://container",
            {"azure.account.name": "name", "azure.account.key": "a2V5"},
            {"container_name": "container", "account_name": "name", "account_key": "a2V5"},
        ),
        ("gs://bucket", {}, {"bucket": "bucket"}),
    ],
)
def test_store_is_opened_with_its_own_settings(
    url: str, config: dict[str, str], expected: dict[str, str]
) -> None:
    opened = ObjectStoreSettings.from_config({"url": url, **config})
    store = open_object_store(opened, create_folder=False)
    found = getattr(store, "config", {})
    assert {name: found.get(name) for name in expected} == expected


def test_known_reason_is_one_of_few_whatever_the_store_says() -> None:
    assert known_reason(store_reason(OSError(s3_text("403 Forbidden", "Odd")))) == "access denied"
    assert known_reason("wrong region: the bucket is in eu-west-1 (Odd)") == "wrong region"
    assert known_reason("EntityTooLarge") is None
