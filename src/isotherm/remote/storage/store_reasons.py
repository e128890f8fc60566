"""Shortens a store's error to a few words: the text of `obstore` has many lines."""

from __future__ import annotations

import re

_CODE = re.compile(r"<Code>(\w+)</Code>")
_ABSENT_CODES = ("NoSuchKey", "BlobNotFound")
_NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist|ContainerNotFound")
_REGION = re.compile(r"<Region>([\w-]{1,40})</Region>")
_SIZE_MAX = 200
# The first pattern that matches counts.
_REASONS = (
    (
        re.compile(r"InvalidCertificate"),
        "certificate not trusted: ca.certificates.path names further authorities",
    ),
    (
        re.compile(r"InvalidContentType|WRONG_VERSION_NUMBER"),
        "not TLS: the store speaks http there, and not https",
    ),
    (
        re.compile(r"HTTP request to an HTTPS server|HTTP request was sent to HTTPS"),
        "TLS expected: the store speaks https there, and not http",
    ),
    (_NO_BUCKET, "bucket not found"),
    (
        re.compile(r"AuthorizationHeaderMalformed|PermanentRedirect|region .{1,40} is wrong"),
        "wrong region",
    ),
    (
        re.compile(r"169\.254\.169\.254|metadata\.google\.internal|InstanceMetadata|Credential"),
        "no credentials: none are set, and none are found in the environment",
    ),
    (re.compile(r"status code: 40[13]|Permission|AccessDenied|XAdminUser"), "access denied"),
    (re.compile(r"ConnectionRefused|[Cc]onnection refused"), "connection refused"),
    (
        re.compile(r"dns error|failed to lookup address|Name or service not known"),
        "no such host",
    ),
    (re.compile(r"TimedOut|timed out|deadline"), "no answer in time"),
    (
        re.compile(
            r"InsufficientStorage|QuotaExceeded|status code: 507|No space left|quota exceeded"
            r"|os error 28\b|os error 122\b"
        ),
        "No space left on device",
    ),
    (re.compile(r"Read-only file system|os error 30\b"), "Read-only file system"),
    (re.compile(r"status code: 429|status code: 503|SlowDown|TooManyRequests"), "throttled"),
)
REFUSALS = (
    "certificate not trusted",
    "not TLS",
    "TLS expected",
    "bucket not found",
    "wrong region",
    "no credentials",
    "access denied",
)
"""Prefixes of reasons that persist until the configuration or the rights are changed."""


_KNOWN = tuple(reason.partition(":")[0] for _, reason in _REASONS)


def known_reason(reason: str) -> str | None:
    """The first words of a reason of `store_reason`, without what only the store says. None if the
    store has a reason of its own."""
    return next((beginning for beginning in _KNOWN if reason.startswith(beginning)), None)


def store_reason(error: BaseException) -> str:
    """One line: a known reason with the store's own code, else the code or the first line of the
    error."""
    text = str(error)
    code = _CODE.search(text)
    for pattern, reason in _REASONS:
        if pattern.search(text):
            if reason == "wrong region" and (region := _REGION.search(text)) is not None:
                reason = f"wrong region: the bucket is in {region[1]}"
            return f"{reason} ({code[1]})" if code else reason
    if code:
        return code[1]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = text.splitlines()
    return lines[0][:_SIZE_MAX] if lines else type(error).__name__


def is_absence(error: FileNotFoundError) -> bool:
    """Whether the object is missing. The bucket, or the user of the store, may be missing
    instead."""
    text = str(error)
    code = _CODE.search(text)
    return code[1] in _ABSENT_CODES if code else _NO_BUCKET.search(text) is None
