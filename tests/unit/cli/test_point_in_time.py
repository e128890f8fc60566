"""Points in time are exact milliseconds, or refused with one message."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.cli.point_in_time import time_ms
from isotherm.errors import ConfigError

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NEW_YEAR_MS = 1_767_225_600_000
YEAR_9999_MS = 253_402_300_799_999
LATEST_MS = 2**63 - 1


@pytest.mark.parametrize(
    "text",
    [
        "1767225600000",
        "2026-01-01",
        "2026-01-01T00:00",
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.000",
        "2026-01-01T02:00:00+02:00",
        "2026-01-01T00:00:00.000999",
    ],
)
def test_forms_of_one_time(text: str) -> None:
    assert time_ms(text) == NEW_YEAR_MS


@given(st.integers(0, YEAR_9999_MS), st.integers(0, 999))
@example(545_579_485_999, 0)  # As a float of seconds it is just below that millisecond.
def test_each_millisecond_is_exact(milliseconds: int, microseconds: int) -> None:
    since = datetime.timedelta(milliseconds=milliseconds, microseconds=microseconds)
    time = EPOCH + since
    assert time_ms(time.isoformat()) == time_ms(time.isoformat()[:-6]) == milliseconds
    assert time_ms(str(milliseconds)) == milliseconds


def test_bounds_are_those_of_timestamps() -> None:
    assert (time_ms("0"), time_ms("1970-01-01")) == (0, 0)
    assert time_ms(str(LATEST_MS)) == LATEST_MS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("noon", "not a time value='noon' hint='2026-03-01T12:00:00Z, or milliseconds"),
        ("", "not a time value=''"),
        ("-1", "not a time value='-1'"),
        ("²", "not a time value='²'"),
        ("1969-12-31T23:59:59.999", "no record has a time before 1970"),
        ("1970-01-01T00:00+01:00", "no record has a time before 1970"),
        (str(LATEST_MS + 1), f"no record has a time after {LATEST_MS} ms since 1970"),
        ("9" * 5000, "no record has a time after"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        time_ms(text)
