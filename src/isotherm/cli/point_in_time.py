"""A point in time as the commands take it."""

from __future__ import annotations

import datetime

from isotherm.errors import ConfigError
from isotherm.types import TimestampMs

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)
# Kafka's timestamps are int64.
_TIMESTAMP_MAX_MS = 2**63 - 1
_TIMESTAMP_DIGITS_MAX = len(str(_TIMESTAMP_MAX_MS))


def time_ms(text: str) -> TimestampMs:
    """Parse milliseconds since 1970, or an ISO 8601 time, which is in UTC unless it names a zone.
    Microseconds are cut off.

    Raises ConfigError for any other text, for times before 1970 (in requests for offsets, negative
    timestamps are names such as "latest"), and for numbers that no timestamp has.
    """
    time = _digits_ms(text) if text.isascii() and text.isdigit() else _iso_time_ms(text)
    if not 0 <= time <= _TIMESTAMP_MAX_MS:
        where = "before 1970" if time < 0 else f"after {_TIMESTAMP_MAX_MS} ms since 1970"
        raise ConfigError(f"no record has a time {where} value={text!r}")
    return time


def _digits_ms(text: str) -> int:
    # Python refuses to parse thousands of digits with an error of its own.
    return int(text) if len(text) <= _TIMESTAMP_DIGITS_MAX else _TIMESTAMP_MAX_MS + 1


def _iso_time_ms(text: str) -> int:
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"not a time value={text!r} hint='2026-03-01T12:00:00Z, or milliseconds since 1970'"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    # timestamp() is a float: a millisecond too early for one of 160 times since 1970.
    return (time - _EPOCH) // _MILLISECOND
