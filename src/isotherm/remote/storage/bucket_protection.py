"""Finds out whether a bucket keeps what is deleted from it: by object versioning, by replication to
another bucket, or by an object lock. Deletion is then not the end of the bytes.

obstore has none of these requests, so they are sent and signed here (AWS Signature Version 4). The
credentials are those of the settings or of the environment.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TimestampMs

NOT_KNOWN = "not known"
ON, SUSPENDED, OFF = "on", "suspended", "off"

_ANSWER_BYTES_MAX = 1024 * 1024
_TIMEOUT_S_MAX = 10.0
_HTTP_OK, _HTTP_NOT_FOUND = 200, 404
_DEFAULT_REGION = "us-east-1"
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_STATUS = re.compile(rb"<Status>\s*(\w+)\s*</Status>")
_CODE = re.compile(rb"<Code>\s*(\w+)\s*</Code>")
_LOCKED = re.compile(rb"<ObjectLockEnabled>\s*Enabled\s*</ObjectLockEnabled>")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketProtection:
    """`versioning` is ON, SUSPENDED, OFF or NOT_KNOWN, the others ON, OFF or NOT_KNOWN."""

    versioning: str = NOT_KNOWN
    replication: str = NOT_KNOWN
    object_lock: str = NOT_KNOWN

    def lines(self) -> list[str]:
        """What an operator has to do after deletions. Empty if the bucket keeps nothing."""
        lines = []
        if self.versioning in (ON, SUSPENDED):
            lines.append(
                f"object versioning is {self.versioning}: old versions of deleted objects stay in"
                " the bucket until they are deleted, as by a lifecycle rule for noncurrent versions"
            )
        if self.replication == ON:
            lines.append(
                "the bucket is replicated: other buckets have copies, and deletions may not reach"
                " them"
            )
        if self.object_lock == ON:
            lines.append(
                "the bucket has an object lock: locked versions cannot be deleted until their"
                " retention ends"
            )
        unknown = [
            name
            for name, state in (
                ("object versioning", self.versioning),
                ("replication", self.replication),
                ("an object lock", self.object_lock),
            )
            if state == NOT_KNOWN
        ]
        if unknown:
            lines.append(
                f"not known whether the bucket has {', '.join(unknown)}: the store does not tell"
            )
        return lines


UNKNOWN_PROTECTION = BucketProtection()


def read_protection(settings: ObjectStoreSettings, now_ms: TimestampMs) -> BucketProtection:
    """Ask an S3 store, each question once. A folder has none of these. For any other store, without
    credentials here, and for each answer that is refused or missing, the state is NOT_KNOWN."""
    if settings.scheme in ("file", "memory"):
        return BucketProtection(versioning=OFF, replication=OFF, object_lock=OFF)
    keys = _keys(settings)
    if settings.scheme not in ("s3", "s3a") or keys is None:
        return UNKNOWN_PROTECTION
    versioning = _ask(settings, keys, "versioning", now_ms)
    return BucketProtection(
        versioning=_versioning(versioning),
        replication=_configured(
            _ask(settings, keys, "replication", now_ms), "ReplicationConfigurationNotFoundError"
        ),
        object_lock=_locked(_ask(settings, keys, "object-lock", now_ms)),
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes

    @property
    def code(self) -> str:
        code = _CODE.search(self.body)
        return "" if code is None else code[1].decode()


def _versioning(answer: _Answer | None) -> str:
    if answer is None or answer.status != _HTTP_OK or b"VersioningConfiguration" not in answer.body:
        return NOT_KNOWN
    status = _STATUS.search(answer.body)
    if status is None:
        return OFF
    return {b"Enabled": ON, b"Suspended": SUSPENDED}.get(status[1], NOT_KNOWN)


def _configured(answer: _Answer | None, absent: str) -> str:
    if answer is None:
        return NOT_KNOWN
    if answer.status == _HTTP_OK:
        return ON
    return OFF if (answer.status, answer.code) == (_HTTP_NOT_FOUND, absent) else NOT_KNOWN


def _locked(answer: _Answer | None) -> str:
    state = _configured(answer, "ObjectLockConfigurationNotFoundError")
    if state == ON and answer is not None and not _LOCKED.search(answer.body):
        return NOT_KNOWN
    return state


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """Credentials of S3."""

    access_key: str
    secret_key: str
    token: str | None
    region: str


def _keys(settings: ObjectStoreSettings) -> SigningKeys | None:
    region = (
        settings.s3_region
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or _DEFAULT_REGION
    )
    if settings.aws_access_key_id and settings.aws_secret_access_key:
        token = settings.aws_session_token
        return SigningKeys(
            settings.aws_access_key_id, settings.aws_secret_access_key, token, region
        )
    access, secret = (
        os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    )
    if access and secret:
        return SigningKeys(access, secret, os.environ.get("AWS_SESSION_TOKEN"), region)
    return None


def _address(settings: ObjectStoreSettings, region: str) -> tuple[str, str, str]:
    """Scheme, host with port, and path of the bucket."""
    bucket = urlsplit(settings.url).netloc
    by_path = settings.s3_path_style_access_enabled
    if settings.s3_endpoint_url is not None:
        # With a virtual host the endpoint has the bucket's name already, as for obstore.
        endpoint = urlsplit(settings.s3_endpoint_url)
        folder = endpoint.path.rstrip("/")
        path = f"{folder}/{quote(bucket)}" if by_path else f"{folder}/"
        return endpoint.scheme, endpoint.netloc, path
    host = f"s3.{region}.amazonaws.com"
    return ("https", host, f"/{quote(bucket)}") if by_path else ("https", f"{bucket}.{host}", "/")


def _ask(
    settings: ObjectStoreSettings, keys: SigningKeys, question: str, now_ms: TimestampMs
) -> _Answer | None:
    """The answer to GET ?question of the bucket. None if none arrives."""
    scheme, host, path = _address(settings, keys.region)
    headers = signed_headers(keys, host, path, question, now_ms)
    timeout_s = min(settings.request_timeout_ms / 1000, _TIMEOUT_S_MAX)
    try:
        connection: http.client.HTTPConnection
        if scheme == "https":
            context = ssl.create_default_context(cafile=settings.ca_certificates_path)
            if settings.ca_certificates_path is not None:
                context.load_default_certs()
            connection = http.client.HTTPSConnection(host, timeout=timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(host, timeout=timeout_s)
        try:
            connection.request("GET", f"{path}?{question}", headers=dict(headers))
            response = connection.getresponse()
            return _Answer(response.status, response.read(_ANSWER_BYTES_MAX))
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        # The state is then NOT_KNOWN, which the caller tells.
        return None


def signed_headers(
    keys: SigningKeys, host: str, path: str, question: str, now_ms: TimestampMs
) -> Mapping[str, str]:
    """The headers of GET path?question, signed (AWS Signature Version 4). `question` has no value.

    Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
    """
    moment = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": moment}
    if keys.token is not None:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        [
            "GET",
            path,
            f"{question}=",
            *(f"{name}:{headers[name]}" for name in sorted(headers)),
            "",
            names,
            _EMPTY_SHA256,
        ]
    )
    scope = f"{moment[:8]}/{keys.region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
    key = f"AWS4{keys.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope},SignedHeaders={names},"
        f"Signature={signature}"
    )
    return headers
