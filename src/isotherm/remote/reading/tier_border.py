"""Searches both tiers of a log while local retention may move the border between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from isotherm.errors import RemoteStorageError
from isotherm.log.log_segment import LogSegment
from isotherm.log.partition_log import PartitionLog
from isotherm.types import TopicIdPartition

SEARCHES_MAX = 3
"""Most searches of both tiers while local retention moves the border between them."""

Found = TypeVar("Found")


def search_both_tiers(
    log: PartitionLog,
    partition: TopicIdPartition,
    task: str,
    search: Callable[[Sequence[LogSegment]], tuple[Found, bool]],
) -> Found:
    """Call `search` with the local segments until the first of them stays the same meanwhile.

    Local retention may delete a segment after the remote tier was searched and before the local log
    is: then neither search sees it. `search` returns its result, and whether the remote tier alone
    settles it. Raises RemoteStorageError, which names the `task`, after SEARCHES_MAX searches.
    """
    for _ in range(SEARCHES_MAX):
        local = log.segments()
        found, is_settled = search(local)
        # Local retention deletes from the front, so the first segment shows every move.
        if is_settled or log.segments()[0].base_offset == local[0].base_offset:
            return found
    raise RemoteStorageError(
        f"local segments went to the remote tier during a {task} partition={partition}"
    )
