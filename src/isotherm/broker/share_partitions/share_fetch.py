"""One fetch of a member: it reads partitions of both tiers, and acquires records of what it read.

    read what is acquirable ──> enough ──> acquire ──> answers
              ▲                   │ less than min.bytes: wait
              └─ a change ────────┴──── max.wait is over: acquire what is there

A share partition is read by one fetch at a time. A fetch of the remote tier holds those alone that
it reads there; the others are read when it has come. The same readers serve consumers' fetches, so
history is read ahead, off the event loop, and within its bounds.

Source: Kafka DelayedShareFetch, ShareFetchUtils, PartitionMaxBytesStrategy.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.shares.share_state_records import SharePartitionKey
from isotherm.broker.error_mapping import error_code
from isotherm.broker.partitions.delayed_fetch import expected_size
from isotherm.broker.partitions.fetch_reads import FetchReader, FetchReads, PartitionRead
from isotherm.broker.partitions.fetch_target import FetchTarget, PartitionKey
from isotherm.broker.partitions.purgatory import Purgatory
from isotherm.broker.share_partitions.acquisition import Acquired, record_count
from isotherm.broker.share_partitions.delivery_settings import DeliverySettings
from isotherm.broker.share_partitions.fetched_batches import (
    Piece,
    acquired_pieces,
    fetched_batches,
)
from isotherm.broker.share_partitions.share_partition import Member, SharePartition
from isotherm.errors import IsothermError, NotLeaderOrFollowerError
from isotherm.protocol.fetch import FetchPartition
from isotherm.types import TopicPartition

if TYPE_CHECKING:
    from isotherm.remote.reading.reader_pool import RemoteReaderPool


class FetchedPartition(NamedTuple):
    """The answer for one partition. `records` are whole batches, of which the member has acquired
    the records in `acquired`."""

    error_code: int = 0
    records: Sequence[Piece] = ()
    acquired: Sequence[Acquired] = ()

    @property
    def has_records(self) -> bool:
        return bool(self.records)


class FetchBounds(NamedTuple):
    """`max_bytes` and `min_bytes` are of the whole answer, `record_count_max` too."""

    max_bytes: int
    min_bytes: int
    max_wait_s: float
    record_count_max: int


class RemoteTierReads(NamedTuple):
    readers: RemoteReaderPool
    wait_s_max: float


class _Target(NamedTuple):
    """A share partition that a fetch reads, at the offset of `read`'s request. `size_max` is its
    part of the fetch's bytes; the request may have less."""

    share_partition: SharePartition
    read: FetchTarget
    size_max: int


class _Answered(enum.Enum):
    ANSWERED = enum.auto()


_ANSWERED = _Answered.ANSWERED


class _RemoteStep(NamedTuple):
    """The remote tier must be read for `targets`, which the fetch holds; `reads` has others too."""

    targets: Sequence[_Target]
    reads: FetchReads
    remote: RemoteTierReads


class _Wait:
    """A fetch that waits for a change in its partitions, in the purgatory. The result of `future`
    is whether there was one."""

    def __init__(self, fetch: ShareFetch) -> None:
        self.future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._fetch = fetch

    def try_complete(self, key: Hashable | None) -> bool:
        if not self.future.done() and self._fetch.has_news():
            self.future.set_result(True)
        return self.future.done()

    def expire(self) -> None:
        self.future.set_result(False)


class ShareFetch:
    """Used once. Event loop thread only.

    A fetch that is cancelled has acquired nothing, or its member does not get what it has acquired:
    then the locks end.
    """

    def __init__(
        self,
        member: Member,
        share_partitions: Sequence[SharePartition],
        bounds: FetchBounds,
        settings: DeliverySettings,
        purgatory: Purgatory[Hashable],
        remote: RemoteTierReads | None,
    ) -> None:
        """`share_partitions` are read in this order."""
        self._member = member
        self._share_partitions = {
            share_partition.key: share_partition for share_partition in share_partitions
        }
        self._bounds = bounds
        self._settings = settings
        self._purgatory = purgatory
        self._remote = remote
        self._reader = FetchReader(settings.isolation, leader_only=True)
        self._answers: dict[SharePartitionKey, FetchedPartition] = {}
        self._record_count_left = bounds.record_count_max
        self._waits_for_news = False
        self._requested_count = len(self._share_partitions)
        self._read_count = 0
        self.has_expired = False
        """Whether the fetch was answered because its time was over."""
        # Of the last attempt that found less than min.bytes.
        self._targets: dict[SharePartitionKey, _Target] = {}

    def answers_at_once(self) -> dict[SharePartitionKey, FetchedPartition] | None:
        """The answers of the partitions that were read, or have an error. None if the fetch has to
        wait, for records or for the remote tier: `run` does."""
        step = self._attempt()
        if isinstance(step, _RemoteStep):
            # Not held for `run`, which may be cancelled before it begins.
            _end(step.targets)
        self._waits_for_news = step is None
        return self._answers if step is _ANSWERED else None

    async def run(self) -> dict[SharePartitionKey, FetchedPartition]:
        """The answers of the partitions that were read, or have an error."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._bounds.max_wait_s
        is_tried = self._waits_for_news and not self.has_news()
        while is_tried or (step := self._attempt()) is None:
            is_tried = False
            wait = _Wait(self)
            left_s = max(0.0, deadline_s - loop.time())
            self._purgatory.watch(wait, self._watched_keys(), left_s)
            if not await wait.future:
                self.has_expired = True
                self._finish()
                return self._answers
        if isinstance(step, _RemoteStep):
            await self._answer_remote(step)
        return self._answers

    @property
    def read_percentage(self) -> int:
        """How many of its partitions the fetch has read."""
        return 100 * self._read_count // self._requested_count

    def _watched_keys(self) -> list[Hashable]:
        keys: list[Hashable] = list(self._share_partitions)
        topic_partitions: set[TopicPartition] = {
            share_partition.partition.topic_partition
            for share_partition in self._share_partitions.values()
        }
        return [*keys, *topic_partitions]

    def has_news(self) -> bool:
        """Whether another attempt may succeed."""
        size: int | None = None
        for key, share_partition in self._share_partitions.items():
            if share_partition.is_fenced or not share_partition.is_led:
                return True
            offset = share_partition.next_fetch_offset(self._settings)
            if offset is None:
                continue
            target = self._targets.get(key)
            if target is None or target.read.request.fetch_offset != offset:
                return True
            size = (size or 0) + expected_size(target.read, self._reader)
        return size is not None and size >= self._bounds.min_bytes

    # ---- attempts

    def _attempt(self) -> _RemoteStep | _Answered | None:
        """Read and acquire. None if there is less than min.bytes; nothing is acquired then, nor if
        the remote tier must be read."""
        self._note_failures()
        if not self._share_partitions:
            return _ANSWERED
        targets = self._begin(list(self._share_partitions.values()), self._bounds.max_bytes)
        if not targets:
            self._targets = {}
            return None
        ended = targets
        try:
            reads = self._read(targets, self._bounds.max_bytes)
            if self._remote is not None and reads.needs_remote:
                reads.read_from_memory(self._remote.readers)
            if self._remote is not None and reads.needs_remote:
                at_remote, ended = _split(targets, reads)
                return _RemoteStep(at_remote, reads, self._remote)
            if _is_short(reads, self._bounds.min_bytes) and _widen(targets):
                reads = self._read(targets, self._bounds.max_bytes)
            if _is_short(reads, self._bounds.min_bytes):
                self._targets = {target.share_partition.key: target for target in targets}
                return None
            self._answer(targets, reads.reads)
            return _ANSWERED
        finally:
            _end(ended)

    async def _answer_remote(self, step: _RemoteStep) -> None:
        """Answer with what the remote tier has, and then with what is local."""
        targets, reads, remote = step
        try:
            chosen = [
                read
                for read, target in zip(reads.reads, reads.targets, strict=True)
                if any(target is held.read for held in targets)
            ]
            pending = FetchReads([target.read for target in targets], chosen)
            await pending.read_remote(remote.readers, remote.wait_s_max)
            self._answer(targets, pending.reads)
            self._answer_rest(targets, pending.reads)
        finally:
            _end(targets)

    def _answer_rest(self, targets: Sequence[_Target], reads: Sequence[PartitionRead]) -> None:
        """Answer with what is local of the partitions beside `targets`."""
        left = self._bounds.max_bytes - sum(read.size for read in reads)
        if left <= 0 or self._record_count_left <= 0:
            return
        self._note_failures()
        keys = {target.share_partition.key for target in targets}
        self._answer_local(
            [
                share_partition
                for key, share_partition in self._share_partitions.items()
                if key not in keys
            ],
            left,
        )

    def _finish(self) -> None:
        """Acquire what is readable at once: the time is over."""
        self._note_failures()
        self._answer_local(list(self._share_partitions.values()), self._bounds.max_bytes)

    def _answer_local(self, share_partitions: Sequence[SharePartition], max_bytes: int) -> None:
        targets = self._begin(share_partitions, max_bytes)
        try:
            reads = self._read(targets, max_bytes)
            if self._remote is not None and reads.needs_remote:
                reads.read_from_memory(self._remote.readers)
            there = [
                (target, read)
                for target, read in zip(targets, reads.reads, strict=True)
                if read.remote is None
            ]
            self._answer([target for target, _ in there], [read for _, read in there])
        finally:
            _end(targets)

    def _note_failures(self) -> None:
        """Answer for share partitions that have ended."""
        for key, share_partition in tuple(self._share_partitions.items()):
            if share_partition.load_error is not None:
                error: IsothermError = share_partition.load_error
            elif share_partition.is_fenced or not share_partition.is_led:
                error = NotLeaderOrFollowerError("another broker leads the partition")
            else:
                continue
            self._answers[key] = FetchedPartition(error_code(error))
            del self._share_partitions[key]

    # ---- reads

    def _begin(self, share_partitions: Sequence[SharePartition], max_bytes: int) -> list[_Target]:
        """The share partitions that are acquirable now, each with its part of the bytes."""
        begun = [
            (share_partition, offset)
            for share_partition in share_partitions
            if (offset := share_partition.begin_fetch(self._settings)) is not None
        ]
        targets = []
        for index, (share_partition, offset) in enumerate(begun):
            partition = share_partition.partition
            # Kafka sends a part of what it reads from the file; here the read itself costs.
            size_max = _part(max_bytes, index, len(begun))
            size = min(size_max, share_partition.read_size_max(self._record_count_left))
            request = FetchPartition(share_partition.key.partition, offset, size)
            name = partition.topic_partition.topic
            target = FetchTarget(PartitionKey(name, None, request.partition), request)
            target.partition = partition
            targets.append(_Target(share_partition, target, size_max))
        return targets

    def _read(self, targets: Sequence[_Target], max_bytes: int) -> FetchReads:
        return self._reader.read_partitions([target.read for target in targets], max_bytes)

    def _answer(self, targets: Sequence[_Target], reads: Sequence[PartitionRead]) -> None:
        self._read_count += len(targets)
        for target, read in zip(targets, reads, strict=True):
            key = target.share_partition.key
            try:
                self._answers[key] = self._acquired(target, read)
            except IsothermError as error:
                # A damaged batch: the other partitions are answered.
                self._answers[key] = FetchedPartition(error_code(error))

    def _acquired(self, target: _Target, read: PartitionRead) -> FetchedPartition:
        share_partition, response = target.share_partition, read.response
        if response.error_code == ErrorCode.offset_out_of_range:
            # The log begins later now; the next fetch begins there.
            share_partition.move_start(share_partition.partition.log.log_start_offset)
            return FetchedPartition()
        if response.error_code:
            return FetchedPartition(response.error_code)
        pieces = response.records
        batches = fetched_batches(pieces)
        acquired = share_partition.acquire(
            self._member,
            self._record_count_left,
            target.read.request.fetch_offset,
            batches,
            self._settings,
        )
        if acquired and response.aborted_transactions:
            acquired = share_partition.without_aborted(
                acquired, pieces, batches, response.aborted_transactions
            )
        if not acquired:
            return FetchedPartition()
        self._record_count_left -= record_count(acquired)
        return FetchedPartition(0, acquired_pieces(pieces, batches, acquired), acquired)


def _part(max_bytes: int, index: int, count: int) -> int:
    """The bytes of one of `count` partitions. What is left over is the first one's; with fewer
    bytes than partitions the first ones have one each."""
    if max_bytes < count:
        return int(index < max_bytes)
    return max_bytes // count + (max_bytes % count if index == 0 else 0)


def _is_short(reads: FetchReads, min_bytes: int) -> bool:
    return reads.size < min_bytes and not any(read.response.error_code for read in reads.reads)


def _widen(targets: Sequence[_Target]) -> bool:
    """Let each be read with all its part of the bytes. Returns whether one had less."""
    has_changed = False
    for target in targets:
        request = target.read.request
        if request.partition_max_bytes < target.size_max:
            target.read.request = request._replace(partition_max_bytes=target.size_max)
            has_changed = True
    return has_changed


def _split(targets: Sequence[_Target], reads: FetchReads) -> tuple[list[_Target], list[_Target]]:
    """Those that the remote tier must answer yet, and the others."""
    at_remote: list[_Target] = []
    rest: list[_Target] = []
    for target, read in zip(targets, reads.reads, strict=True):
        (rest if read.remote is None else at_remote).append(target)
    return at_remote, rest


def _end(targets: Sequence[_Target]) -> None:
    for target in targets:
        target.share_partition.end_fetch()
