"""Why a store refused, in a few words: what `obstore` says of it goes over many lines."""

from __future__ import annotations

import re

_CODE = re.compile(r"<Code>(\w+)</Code>")
_ABSENT_CODES = ("NoSuchKey", "BlobNotFound")
_NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist|ContainerNotFound")
_SIZE_MAX = 200
# The first that is met.
_REASONS = (
    (
        re.compile(r"InvalidCertificate"),
        "certificate not trusted: ca.certificates.path names further authorities",
    ),
    (_NO_BUCKET, "bucket not found"),
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
    (re.compile(r"status code: 429|status code: 503|SlowDown|TooManyRequests"), "throttled"),
)
REFUSALS = ("certificate not trusted", "bucket not found", "no credentials", "access denied")
"""What stays wrong until the configuration or the rights are changed: how such reasons begin."""


def store_reason(error: BaseException) -> str:
    """A line: what is known of it, with the store's own code; else what the store said first."""
    text = str(error)
    code = _CODE.search(text)
    for pattern, reason in _REASONS:
        if pattern.search(text):
            return f"{reason} ({code[1]})" if code else reason
    if code:
        return code[1]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = text.splitlines()
    return lines[0][:_SIZE_MAX] if lines else type(error).__name__


def is_absence(error: FileNotFoundError) -> bool:
    """Whether it is the object that is missing. A bucket, or the store's own user, may be."""
    text = str(error)
    code = _CODE.search(text)
    return code[1] in _ABSENT_CODES if code else _NO_BUCKET.search(text) is None
