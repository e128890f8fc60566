"""The wait between two attempts of a request to other brokers."""

from __future__ import annotations

import asyncio
import contextlib


async def is_stopped_within(stopped: asyncio.Event, backoff_s: float) -> bool:
    """Wait for `backoff_s`, or until the broker stops. Returns whether it stops."""
    if not stopped.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), backoff_s)
    return stopped.is_set()
