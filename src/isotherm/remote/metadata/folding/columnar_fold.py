"""The fold of millions of metadata records. The result is that of applying each record to the
cache.

Columns drop the records that later ones overtake, and add finished segments in bulk (lives.py). The
other records go one by one through the partition store, as a broker's live records do, so the rules
of the metadata exist once. The number of those does not grow with the history: the records that
survive a window wait for the next one, which drops most of them.

Importing this module loads Arrow; the first records load kernels.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isotherm.errors import CorruptMetadataError
from isotherm.kernels.event_table import PUT, TOMBSTONE
from isotherm.remote.metadata.folding.decoded_run import DecodedRun, segment_ids
from isotherm.remote.metadata.folding.lives import Window, grouped, weigh
from isotherm.remote.metadata.folding.selected_partitions import (
    SelectedPartitions,
    SelectsPartition,
)
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition

if TYPE_CHECKING:
    from isotherm.remote.metadata.folding.decoded_run import Int64Array

# Called with the offset of a damaged record and the reason. An exception ends the fold.
OnCorrupt = Callable[[Offset, str], None]

_PLACE_FIELDS = ("topic_high", "topic_low", "partition", "name_hash")

# The most bytes of waiting survivors. More are applied, since every later window would weigh them
# again. Survivors of a million live segments would be 300 MB (decision 89).
_WAITING_MAX_BYTES = 16 * 1024 * 1024


class _Weighed(NamedTuple):
    run: DecodedRun
    places: Int64Array
    window: Window


class ColumnarFold:
    """Folds the records of one metadata partition, once, into `partitions`. Not thread-safe."""

    def __init__(
        self,
        selects: SelectsPartition,
        on_corrupt: OnCorrupt,
        *,
        waiting_max_bytes: int = _WAITING_MAX_BYTES,
    ) -> None:
        self.partitions = SelectedPartitions(selects)
        self._on_corrupt = on_corrupt
        self._waiting_max_bytes = waiting_max_bytes
        self._waiting: _Weighed | None = None
        self._by_number: list[TopicIdPartition] = []
        # Indexes in `_by_number`, -1 for an unwanted partition: by partition, and by the
        # _PLACE_FIELDS of an event.
        self._numbers: dict[TopicIdPartition, int] = {}
        self._places: dict[tuple[int, ...], int] = {}

    def feed(self, run: DecodedRun) -> None:
        """Fold the next records. Raises what `on_corrupt` raises for a record that cannot be
        decoded or applied, perhaps only in a later call or in `finish`."""
        if self._waiting is not None:
            earlier, survivors = self._waiting.run, self._waiting.window.survivors
            if earlier.byte_count(survivors) > self._waiting_max_bytes:
                self.finish()
            else:
                run = DecodedRun.joined(earlier, survivors, run)
        if len(run.offset):
            places = self._find_places(run)
            self._waiting = _Weighed(run, places, weigh(run, places, self._cache))

    def finish(self) -> None:
        """Apply the waiting records. Call after the last `feed`."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._apply(waiting.run, waiting.window, waiting.places)

    def _cache(self, place: int) -> RemoteLogMetadataCache:
        """The cache of an open partition. Records of other partitions have no place."""
        cache = self.partitions.cache(self._by_number[place])
        assert cache is not None
        return cache

    def _find_places(self, run: DecodedRun) -> Int64Array:
        """The partition's index for each record; -1 for an unwanted, deleted or unnamed one."""
        events = run.events
        places = np.full(len(events), -1)
        named = np.flatnonzero(events["kind"] < TOMBSTONE)
        rows, starts = grouped(named, *(events[name] for name in _PLACE_FIELDS))
        firsts = rows[starts]
        identities = zip(*(events[name][firsts].tolist() for name in _PLACE_FIELDS), strict=True)
        # Partitions open in the order of their first records: a tombstone has no topic name and
        # refers to the latest partition with its id.
        found_places = [
            self._place(run, identity, number)
            for identity, number in zip(identities, firsts.tolist(), strict=True)
        ]
        places[rows] = np.repeat(
            np.array(found_places, np.int64), np.diff(starts, append=len(rows))
        )
        return places

    def _place(self, run: DecodedRun, identity: tuple[int, ...], number: int) -> int:
        place = self._places.get(identity)
        if place is None:
            place = self._places[identity] = self._number_of(run.partition(number))
        is_open = place >= 0 and self.partitions.cache(self._by_number[place]) is not None
        return place if is_open else -1

    def _number_of(self, partition: TopicIdPartition) -> int:
        number = self._numbers.get(partition)
        if number is None:
            number = -1
            if self.partitions.opens(partition):
                number = len(self._by_number)
                self._by_number.append(partition)
            self._numbers[partition] = number
        return number

    def _apply(self, run: DecodedRun, window: Window, places: Int64Array) -> None:
        # Settled lives first: `append_finished` needs them above the tail of their epochs, which
        # the other records may raise.
        self._settle(run, window, places[window.first])
        buried = segment_ids(run.events, window.buried)
        of_buried = places[window.buried]
        for first, end in itertools.pairwise(_borders(of_buried)):
            self._bury(int(of_buried[first]), buried[first:end])
        for number in window.others.tolist():
            try:
                self._apply_one(run, number, int(places[number]))
            except CorruptMetadataError as error:
                self._on_corrupt(int(run.offset[number]), str(error))

    def _apply_one(self, run: DecodedRun, number: int, _place: int) -> None:
        """A subclass also uses the place, to keep the offset of the last record."""
        self.partitions.apply_change(run.change(number))

    def _settle(self, run: DecodedRun, window: Window, places: Int64Array) -> None:
        """Add the settled lives to the caches, one partition at a time, then their spans for
        look-ups."""
        events = run.events
        ids = segment_ids(events, window.first)
        rows = run.rows(window.first, window.last)
        leaders = events["leader"][window.first].astype(np.int32)
        keys = list(zip(events["end"][window.first].tolist(), leaders.tolist(), ids, strict=True))
        is_keyed = (events["kind"][window.first] == PUT).tolist()
        offsets = run.offset[window.last].tolist()
        for first, end in itertools.pairwise(_borders(places)):
            lives = slice(first, end)
            self._lay_down(
                int(places[first]),
                dict(zip(ids[lives], rows[lives], strict=True)),
                itertools.compress(keys[lives], is_keyed[lives]),
                offsets[lives],
            )
        spans = window.spans
        owners, starts, ends = spans.life.tolist(), spans.start, spans.end
        whole = window.first[spans.life]
        marked = (events["end"][whole] > ends) | (events["txn_index_empty"][whole] == 0)
        for first, end in itertools.pairwise(spans.borders().tolist()):
            self._cache(int(spans.place[first])).append_finished(
                int(spans.epoch[first]),
                [ids[owner] for owner in owners[first:end]],
                array("q", starts[first:end].tobytes()),
                array("q", ends[first:end].tobytes()),
                array("i", leaders[spans.life[first:end]].tobytes()),
                marked[first:end].tobytes(),
            )

    def _bury(self, place: int, segment_ids: Sequence[bytes]) -> None:
        self._cache(place).bury(segment_ids)

    def _lay_down(
        self,
        place: int,
        rows: dict[bytes, bytes],
        keys: Iterable[tuple[Offset, LeaderEpoch, bytes]],
        _offsets: list[Offset],
    ) -> None:
        """`_offsets` has the offset of each row's last record; a table of segments keeps it."""
        self._cache(place).lay_down(rows, keys)


def _borders(places: Int64Array) -> list[int]:
    """The first index of each place in sorted `places`, and the end."""
    return np.flatnonzero(np.diff(places, prepend=-1, append=-1)).tolist()
