"""What waits for changes of a partition: requests, fetch sessions, and coordinators.

    requests    fetches and producers with acks=all, in the purgatory; notified by partition
    sessions    fetch sessions that have the partition; it is marked in each, and the session
                notified
    commits     records of a coordinator; done when the high watermark has reached them

Any thread may change a partition. Requests and sessions pass to the event loop by the purgatory,
commits by the loop of their future. Source: Kafka DelayedOperations in Partition.scala.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Hashable
from typing import Any, NamedTuple, Protocol

from isotherm.broker.shared_futures import shared
from isotherm.errors import NotLeaderOrFollowerError
from isotherm.types import Offset, TopicPartition


class WaitingRequests(Protocol):
    """The requests that wait for changes: a purgatory.

    A key that is not `watched` need not be notified.
    """

    @property
    def watched(self) -> Container[Any]: ...

    def notify(self, key: Any) -> None:
        """Any thread."""


class PartitionWatcher(Protocol):
    """A fetch session. Partitions add their marks to `marked` after a change, from any thread."""

    @property
    def marked(self) -> set[Any]: ...

    def __hash__(self) -> int: ...


class _CommitWait(NamedTuple):
    """`future` is done when the high watermark has reached `end_offset`."""

    end_offset: Offset
    term: int
    future: asyncio.Future[None]


class PartitionWaits:
    """Call `changed` after each change, without the partition's lock.

    `requests`, `watchers` and `commits` may be read by a caller that has no time for a call if
    nothing waits.
    """

    __slots__ = ("_is_committed", "_topic_partition", "commits", "requests", "watchers")

    def __init__(
        self,
        topic_partition: TopicPartition,
        requests: WaitingRequests,
        is_committed: Callable[[Offset, int], bool],
    ) -> None:
        """`is_committed` returns whether all records below an offset, appended in a term, are
        committed. It raises NotLeaderOrFollowerError if another term has begun."""
        self._topic_partition = topic_partition
        self._is_committed = is_committed
        self.requests = requests
        # By mark. One entry per session that has this partition, so the fetch session cache bounds
        # them.
        self.watchers: dict[Hashable, PartitionWatcher] = {}
        # Event loop thread only.
        self.commits: list[_CommitWait] = []

    def changed(self) -> None:
        """Notify all that wait. Any thread."""
        self.requests.notify(self._topic_partition)
        self.mark()
        if self.commits:
            self.wake_commits()

    def watch(self, mark: Hashable, watcher: PartitionWatcher) -> None:
        """Add `mark` to the watcher's `marked` after each later change that a consumer could
        notice: of offsets, of the leader, or of the log. A change is readable before its mark is
        set."""
        self.watchers[mark] = watcher

    def unwatch(self, mark: Hashable) -> None:
        self.watchers.pop(mark, None)

    def mark(self) -> None:
        """Mark the partition for every watcher. Any thread, with or without the log's lock."""
        # A copy, which CPython makes atomically: the event loop adds and removes watchers
        # meanwhile.
        for mark, watcher in self.watchers.copy().items():
            watcher.marked.add(mark)
            self.requests.notify(watcher)

    def until_committed(self, end_offset: Offset, term: int) -> asyncio.Future[None]:
        """A future that is done when `is_committed`, and has its error. It is shared: nobody
        need read it. Event loop thread only."""
        future = shared(asyncio.get_running_loop().create_future())
        self.commits.append(_CommitWait(end_offset, term, future))
        # A change before this call has not woken this wait, as it was not listed yet.
        self._settle_commits()
        return future

    def wake_commits(self) -> None:
        """Settle the commits on their event loop. Any thread."""
        # One call serves all: their futures are of one loop. A slice, because the loop may empty
        # the list at any time.
        for wait in tuple(self.commits[:1]):
            wait.future.get_loop().call_soon_threadsafe(self._settle_commits)

    def _settle_commits(self) -> None:
        left = []
        for wait in self.commits:
            if wait.future.done():
                continue
            try:
                if self._is_committed(wait.end_offset, wait.term):
                    wait.future.set_result(None)
                else:
                    left.append(wait)
            except NotLeaderOrFollowerError as error:
                wait.future.set_exception(error)
        self.commits = left
