"""Futures that several parts of the broker wait for, or none: commits, answers of other brokers.

The error of such a future is an answer to those who wait, and they may all have gone: a client
disconnects, a request is refused for another reason. asyncio expects exactly one reader. It logs an
error without one as a fault ("Future exception was never retrieved"), and cancels the future
together with its reader.

`asyncio.shield` is not used in the broker: from Python 3.14 on it logs such an error itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

from isotherm.errors import IsothermError

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")
SharedFuture = TypeVar("SharedFuture", bound="asyncio.Future[Any]")


def shared(future: SharedFuture) -> SharedFuture:
    """The same future, whose error need not be read by anyone."""
    future.add_done_callback(_read_error)
    return future


async def shared_result(future: asyncio.Future[Result]) -> Result:
    """The future's result, or its error.

    A caller that is cancelled leaves the future to the others.
    """
    if not future.done():
        await asyncio.wait((future,))
    return future.result()


async def results_of(futures: Mapping[Key, asyncio.Future[Any]]) -> dict[Key, Any]:
    """The result of each future, or its error if that is one of Isotherm's."""
    results: dict[Key, Any] = {}
    for key, future in futures.items():
        try:
            results[key] = await shared_result(future)
        except IsothermError as error:
            results[key] = error
    return results


def _read_error(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
