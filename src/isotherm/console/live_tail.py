"""The live tail of a topic: what is new in its partitions, asked for round by round.

A round is one request to each leader for the ends of logs, and one bounded step of a scan over the
partitions that have grown. Nothing is queued: a page that does not read its stream holds up its own
rounds, and a tail that falls behind skips.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import TYPE_CHECKING

from isotherm.client.node_address import NodeAddress
from isotherm.console.records import OffsetRange, RecordBrowser, TopicSearch
from isotherm.storage_view.cluster_storage import ClusterStorage, TopicStorage
from isotherm.types import Offset, TopicPartition

if TYPE_CHECKING:
    from isotherm.storage_view.record_scan import RecordFilter
    from isotherm.storage_view.record_sources import RecordSource
    from isotherm.storage_view.rows import Row

TAILS_AT_ONCE = 8
TAIL_INTERVAL_S = 1.0
TAIL_IDLE_S = 600.0
"""A tail without a new record for so long ends."""
BEHIND_OFFSETS_MAX = 500
"""Of a partition. A tail that is farther behind skips to so many before the end."""


class LiveTail:
    """Follows the ends of partitions. Not thread-safe."""

    def __init__(
        self,
        browser: RecordBrowser,
        source: RecordSource,
        record_filter: RecordFilter,
        starts: dict[int, Offset],
    ) -> None:
        """`starts` has the partitions to follow, each with its first offset."""
        self._browser = browser
        self._source = source
        self._filter = record_filter
        self._next = starts
        self._topic_id: uuid.UUID | None = None

    def round(self, storage: ClusterStorage, topic: TopicStorage) -> Row | None:
        """The records since the last round, None without any. Raises TooManyScansError, and what
        the source raises."""
        self._begin_anew_in(topic)
        skipped, ranges = 0, []
        for partition, end in sorted(self._ends(storage, topic).items()):
            start = max(self._next[partition], end - BEHIND_OFFSETS_MAX)
            skipped += start - self._next[partition]
            self._next[partition] = start
            if start < end:
                ranges.append(OffsetRange(partition, start, end))
        if not ranges:
            return None
        search = TopicSearch(
            ranges=ranges,
            is_newest_first=False,
            filter=self._filter,
            found_max=BEHIND_OFFSETS_MAX,
        )
        steps = self._browser.topic_step(storage, topic, search, is_live=True)
        for step in steps:
            if step.error is None and step.whole.end is not None:
                left = step.left.first if step.left is not None else step.whole.end
                self._next[step.whole.partition] = step.whole.end if left is None else left
        return {**self._browser.topic_rows(topic.state.name, steps), "skipped_offsets": skipped}

    def _begin_anew_in(self, topic: TopicStorage) -> None:
        """Follow a topic that was made anew from its first offset: its ends are below those of the
        one before."""
        topic_id = next((part.state.partition.topic_id for part in topic.partitions), None)
        if topic_id is not None and self._topic_id not in (None, topic_id):
            self._next = dict.fromkeys(self._next, 0)
        self._topic_id = topic_id or self._topic_id

    def _ends(self, storage: ClusterStorage, topic: TopicStorage) -> dict[int, Offset]:
        leaders = {
            broker.broker_id: NodeAddress(broker.host, broker.port) for broker in storage.brokers
        }
        by_leader: dict[NodeAddress, list[TopicPartition]] = defaultdict(list)
        for partition in topic.partitions:
            leader = leaders.get(partition.state.leader)
            if partition.state.partition.partition in self._next and leader is not None:
                by_leader[leader].append(partition.state.partition.topic_partition)
        ends: dict[int, Offset] = {}
        for leader, places in by_leader.items():
            for place, end in self._source.ends(leader, places).items():
                ends[place.partition] = end
        return ends
