"""Searches and reads across the border between the tiers, which local retention may move
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from isotherm.errors import OffsetOutOfRangeError, RemoteStorageError
from isotherm.log.log_segment import LogSegment
from isotherm.log.partition_log import PartitionLog
from isotherm.remote.reading.read_request import ReadRequest, RemoteRead
from isotherm.types import Offset, TopicIdPartition

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
        result, is_settled = search(local)
        # Local retention deletes from the front, so the first segment shows every move.
        if is_settled or log.segments()[0].base_offset == local[0].base_offset:
            return result
    raise _border_moved(partition, task)


def read_local_log(request: ReadRequest, offset: Offset) -> RemoteRead:
    """Answer a read of the remote tier from the local log at `offset`: the tier has no record from
    the requested offset up to there.

    An answer without records would bring the same request again. Raises OffsetOutOfRangeError if
    the log start has passed `offset`, and RemoteStorageError if its segment has left the local log.
    """
    log = request.log
    try:
        records = log.read(
            offset,
            request.max_bytes,
            isolation=request.isolation,
            min_one_message=request.min_one_message,
        )
    except OffsetOutOfRangeError as error:
        if offset < log.log_start_offset:
            raise
        raise _border_moved(request.partition, "read") from error
    return RemoteRead(
        (records.records,),
        len(records.records),
        records.start_offset_segment_base,
        records.position,
        records.log_start_offset,
        records.high_watermark,
        records.last_stable_offset,
        records.aborted_transactions,
    )


def _border_moved(partition: TopicIdPartition, task: str) -> RemoteStorageError:
    return RemoteStorageError(
        f"local segments went to the remote tier during a {task} partition={partition}"
    )
