"""Kafka's names of error codes, for log lines and messages."""

from __future__ import annotations

from kio.schema.errors import ErrorCode


def code_name(code: int) -> str:
    """FENCED_LEADER_EPOCH for 74; a number that Kafka has not given yet as `UNKNOWN_CODE_999`."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"UNKNOWN_CODE_{code}"
