"""Sorts a window of metadata records into the lives of segments, by columns.

The life of a segment is its records in the window. The rules of overlaps do not concern most lives:

    overtaken    it began in the window and was deleted in it: its records can be dropped
    settled      it began in the window and is finished: it becomes one row
    buried       it began before the window, and its deletion was finished in it: its row is dropped

The records of all other lives, and those of no segment, are applied one by one.

A life is sorted into these three only if the result cannot differ. In each of its leader epochs it
must lie above all segments that were finished before the window, and below all overlaps in the
window: then it neither evicts nor hides a segment, and none evicts it. The segment with the highest
end offset of an epoch always stays, because the highest offset of an epoch outlives its segments
(KAFKA-12641). A segment is buried only if its partition has no overlaps, neither before the window
nor in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.kernels.event_table import ADD, NOTHING, PARTITION_DELETE, PUT, TOMBSTONE, UPDATE
from isotherm.remote.history.epoch_columns import span_ends
from isotherm.remote.metadata.folding.decoded_run import segment_ids
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.lifecycle import is_valid_transition
from isotherm.remote.metadata.state.segment_rows import row_state
from isotherm.remote.segment_metadata import RemoteLogSegmentState, RemotePartitionDeleteState

if TYPE_CHECKING:
    import numpy.typing as npt

    from isotherm.remote.metadata.folding.decoded_run import DecodedRun, Events, Int64Array

    Mask: TypeAlias = npt.NDArray[np.bool_]

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_CLOSED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
_NOT_KNOWN = len(RemoteLogSegmentState)
_MAY_FOLLOW = np.array(
    [
        [is_valid_transition(source, target) for target in RemoteLogSegmentState]
        for source in (*RemoteLogSegmentState, None)
    ]
)


# The cache of the partition with this index, before the window.
Before = Callable[[int], RemoteLogMetadataCache]


@dataclass(frozen=True, slots=True)
class Lives:
    """Lives of segments, one row each. `records` has the records grouped by life, each group in the
    order of the window; `life` has the life's index for each of them."""

    records: Int64Array
    life: Int64Array
    first: Int64Array
    last: Int64Array
    place: Int64Array
    is_overtaken: Mask
    is_settled: Mask
    # It was finished in the window, but its offsets are in records before the window.
    is_out_of_sight: Mask
    # Its deletion was finished, and it began before the window.
    is_dying: Mask
    is_finished: Mask


@dataclass(frozen=True, slots=True)
class Spans:
    """The parts of finished segments in their leader epochs, sorted by partition, epoch and start
    offset. `life` is the index of the segment's life."""

    life: Int64Array
    place: Int64Array
    epoch: Int64Array
    start: Int64Array
    end: Int64Array

    def of(self, lives: Mask) -> Spans:
        chosen = lives[self.life]
        return Spans(
            *(column[chosen] for column in (self.life, self.place, self.epoch)),
            *(column[chosen] for column in (self.start, self.end)),
        )

    def borders(self) -> Int64Array:
        """The first index of each partition and epoch, and the end."""
        is_border = np.ones(len(self.life) + 1, np.bool_)
        is_border[1:-1] = np.diff(_group_of(self.place, self.epoch)) != 0
        return np.flatnonzero(is_border)


@dataclass(frozen=True, slots=True)
class Window:
    """Records by their indexes in the run. `first` and `last` have the first and last record of
    each settled life, sorted by partition; a keyed state (level 1) is a life of one record. `spans`
    has the spans of the settled lives. `buried` has the first record of each buried life, sorted by
    partition. `others` are applied one by one after these. `survivors` are all of them: the input
    of the next window if nothing of this one is applied."""

    first: Int64Array
    last: Int64Array
    spans: Spans
    buried: Int64Array
    others: Int64Array
    survivors: Int64Array


def weigh(run: DecodedRun, place: Int64Array, before: Before) -> Window:
    """Sort the records of a window. `place` has the index of each record's user partition; -1 for
    an unwanted one, and for a tombstone, which names no topic."""
    events = run.events
    # Each step narrows `is_plain`, the lives that the rules of overlaps cannot concern.
    is_left = _without_closed_partitions(events, place)
    lives = _lives_of(events, place, is_left)
    spans, is_plain = _spans_and_plain_lives(run, lives, before)
    buried = _buried(events, lives, is_plain, before)
    # A key has one segment at a time: the order of its records decides which one stays.
    is_plain &= ~_shares_its_key(events, is_left, lives)
    chosen = np.flatnonzero(is_plain & (lives.is_overtaken | lives.is_settled))
    is_plain[chosen[_known_ones(events, lives, chosen, before)]] = False
    # Spans are sorted, so the last one of each group is that of the epoch's highest offset.
    is_farthest = np.zeros(len(is_plain), np.bool_)
    is_farthest[spans.life[spans.borders()[1:] - 1]] = True
    is_overtaken = is_plain & lives.is_overtaken & ~is_farthest
    is_settled = is_plain & lives.is_settled
    is_left[lives.records[is_overtaken[lives.life]]] = False
    # Settled and buried lives survive too: until they are applied, a later window may overtake
    # them.
    survivors = np.flatnonzero(is_left)
    is_done = is_settled.copy()
    is_done[buried] = True
    is_left[lives.records[is_done[lives.life]]] = False
    settled = np.flatnonzero(is_settled)
    settled = settled[np.argsort(lives.place[settled], kind="stable")]
    index = np.zeros(len(is_settled), np.int64)
    index[settled] = np.arange(len(settled))
    spans = spans.of(is_settled)
    return Window(
        first=lives.first[settled],
        last=lives.last[settled],
        spans=replace(spans, life=index[spans.life]),
        buried=lives.first[buried],
        others=np.flatnonzero(is_left),
        survivors=survivors,
    )


def _without_closed_partitions(events: Events, place: Int64Array) -> Mask:
    """The records without those of partitions with a finished deletion. An earlier record with an
    invalid state for its kind stays: it must be reported."""
    kind, state = events["kind"], events["state"]
    is_left = np.array((place >= 0) | ((kind >= TOMBSTONE) & (kind != NOTHING)))
    closing = np.flatnonzero((kind == PARTITION_DELETE) & (state == _CLOSED) & (place >= 0))
    if len(closing) == 0:
        return is_left
    # The index of each partition's first finished deletion; the end of the window without one.
    closed_at = np.full(int(place.max()) + 1, len(events))
    np.minimum.at(closed_at, place[closing], closing)
    number, end = np.arange(len(events)), np.where(place >= 0, closed_at[place], len(events))
    is_bad = ((kind == ADD) & (state != _STARTED)) | ((kind == UPDATE) & (state == _STARTED))
    is_left &= (end == len(events)) | (number == end) | (is_bad & (number < end))
    return is_left


def _lives_of(events: Events, place: Int64Array, is_left: Mask) -> Lives:
    kind = events["kind"]
    numbers = np.flatnonzero(is_left & (place >= 0) & (kind <= PUT) & (kind != PARTITION_DELETE))
    numbers, firsts = grouped(numbers, events["id_low"], events["id_high"], place)
    kind, state = kind[numbers], events["state"][numbers]
    is_first = np.zeros(len(numbers), np.bool_)
    is_first[firsts] = True
    counts = np.diff(firsts, append=len(numbers))
    # The state before each record in its life: none before the first one of the life.
    previous = np.concatenate(([_NOT_KNOWN], state[:-1])) if len(state) else state
    previous[firsts] = _NOT_KNOWN
    follows = _MAY_FOLLOW[previous, state] & ((kind == ADD) == is_first) & (kind != PUT)
    follows &= (kind != UPDATE) | (state != _STARTED)
    is_valid = _all_of(follows, firsts)
    # A life that began before the window starts with an update. The cache knows its state before
    # that, so only the later steps are checked here, and the first one in `_buried`.
    follows[firsts] = kind[firsts] == UPDATE
    is_valid_later = _all_of(follows, firsts)
    is_finished = ~_all_of(state != _FINISHED, firsts)
    last = firsts + counts - 1
    is_finished_at_once = (counts == 1) & (kind[firsts] == PUT) & (state[firsts] == _FINISHED)
    return Lives(
        records=numbers,
        life=np.repeat(np.arange(len(firsts)), counts),
        first=numbers[firsts],
        last=numbers[last],
        place=place[numbers[firsts]],
        is_overtaken=is_valid & (state[last] == _DELETED),
        is_settled=(is_valid & (counts == 2) & (state[last] == _FINISHED)) | is_finished_at_once,
        is_out_of_sight=is_finished & (kind[firsts] == UPDATE),
        is_dying=is_valid_later & (state[last] == _DELETED) & ~is_finished,
        is_finished=is_finished,
    )


def _spans_and_plain_lives(run: DecodedRun, lives: Lives, before: Before) -> tuple[Spans, Mask]:
    """The spans of finished segments, and the lives without overlaps in their leader epochs."""
    events = run.events
    kinds = events["kind"][lives.records]
    whole = np.flatnonzero((kinds == ADD) | (kinds == PUT))
    records = lives.records[whole]
    counts = events["epochs_count"][records]
    of_epoch = run.leader_epochs(records)
    epoch, start = of_epoch["epoch"].astype(np.int64), of_epoch["start_offset"].astype(np.int64)
    life = np.repeat(lives.life[whole], counts)
    end = span_ends(start, counts, events["end"][records])
    unsorted = Spans(life, lives.place[life], epoch, start, end)

    is_plain = np.ones(len(lives.first), np.bool_)
    finished = unsorted.of(lives.is_finished)
    group = _group_of(finished.place, finished.epoch)
    order = np.lexsort((finished.start, group))
    spans = Spans(
        *(column[order] for column in (finished.life, finished.place, finished.epoch)),
        *(column[order] for column in (finished.start, finished.end)),
    )
    is_plain[spans.life[~_lies_below_overlaps(spans, before)]] = False
    # A failed copy also adds its epochs to the cache. It may be dropped if finished segments add
    # them.
    failed = unsorted.of(lives.is_overtaken & ~lives.is_finished)
    is_plain[failed.life[~np.isin(_group_of(failed.place, failed.epoch), group)]] = False
    # A segment whose offsets are unknown here may overlap any other of its partition.
    unseen = np.flatnonzero(np.bincount(lives.place[lives.is_out_of_sight]))
    hidden = [place for place in unseen.tolist() if not before(place).is_empty()]
    if hidden:
        is_plain[np.isin(lives.place, hidden)] = False
    return spans, is_plain


def _lies_below_overlaps(spans: Spans, before: Before) -> Mask:
    borders = spans.borders()
    firsts, sizes = borders[:-1], np.diff(borders)
    # The end of the span before: for the first of an epoch, that of the segments before the window.
    below = np.concatenate(([-1], spans.end))[:-1]
    below[firsts] = [
        before(place).tail(epoch)
        for place, epoch in zip(
            spans.place[firsts].tolist(), spans.epoch[firsts].tolist(), strict=True
        )
    ]
    overlaps = (spans.start <= below).astype(np.int64)
    # An epoch may start outside of its segment: such a span ends before its start, and no order is
    # safe.
    inverted = np.add.reduceat(spans.end < spans.start, firsts) if len(firsts) else firsts
    overlaps[firsts] += inverted
    # If a span overlaps the one before it, no life from that one on is plain.
    # Counts restart with each epoch: `seen` is the number of overlaps up to and with each span.
    until = np.cumsum(overlaps)
    seen = until - np.repeat(until[firsts] - overlaps[firsts], sizes)
    following = np.concatenate((seen[1:], [0]))[: len(seen)]
    following[borders[1:] - 1] = seen[borders[1:] - 1]
    is_below: Mask = following == 0
    return is_below


def _buried(events: Events, lives: Lives, is_plain: Mask, before: Before) -> Int64Array:
    """The indexes of the buried lives, sorted by partition."""
    dying: Int64Array = np.flatnonzero(lives.is_dying)
    if len(dying) == 0:
        return dying
    overlapping = {*lives.place[lives.is_finished & ~is_plain].tolist()}
    may_bury = {
        place: place not in overlapping and not before(place).has_hidden()
        for place in {*lives.place[dying].tolist()}
    }
    first = lives.first[dying]
    facts = zip(
        lives.place[dying].tolist(),
        segment_ids(events, first),
        events["state"][first].tolist(),
        strict=True,
    )
    is_buried = [
        may_bury[place]
        and (row := before(place).row(segment)) is not None
        and bool(_MAY_FOLLOW[row_state(row), state])
        for place, segment, state in facts
    ]
    buried: Int64Array = dying[np.array(is_buried)]
    return buried[np.argsort(lives.place[buried], kind="stable")]


def _shares_its_key(events: Events, is_left: Mask, lives: Lives) -> Mask:
    """Lives of one keyed record with a key that occurs in another record or tombstone."""
    keyed = np.flatnonzero(is_left & ((events["kind"] == PUT) | (events["kind"] == TOMBSTONE)))
    is_shared = np.zeros(len(lives.first), np.bool_)
    if len(keyed):
        names = ("topic_high", "topic_low", "partition", "end", "leader")
        numbers, firsts = grouped(keyed, *(events[name] for name in names))
        counts = np.diff(firsts, append=len(numbers))
        is_common = np.zeros(len(events), np.bool_)
        is_common[numbers] = np.repeat(counts > 1, counts)
        is_shared = is_common[lives.first]
    return is_shared


def _known_ones(events: Events, lives: Lives, chosen: Int64Array, before: Before) -> list[int]:
    """Indexes into `chosen` of segments or keys that the cache had before the window."""
    is_empty = {
        place: before(place).is_empty()
        for place in np.flatnonzero(np.bincount(lives.place)).tolist()
    }
    if all(is_empty.values()):
        return []
    first = lives.first[chosen]
    ends = events["end"][first].tolist()
    facts = zip(lives.place[chosen].tolist(), segment_ids(events, first), ends, strict=True)
    return [
        index
        for index, (place, segment, end) in enumerate(facts)
        if not is_empty[place] and before(place).knows(segment, end)
    ]


def _group_of(place: Int64Array, epoch: Int64Array) -> Int64Array:
    """One number for each leader epoch of each partition; both fit into 32 bits."""
    return (place << 32) | (epoch & 0xFFFFFFFF)


def grouped(rows: Int64Array, *columns: Int64Array) -> tuple[Int64Array, Int64Array]:
    """`rows` grouped by equal `columns`, and the index at which each group begins.

    The groups are in the order of their first rows, and the rows of a group in the order of `rows`.
    """
    # Here and not above: a short topic is folded without kernels.
    from isotherm.kernels.grouping import COLUMNS, group_rows

    ordered, starts = np.empty_like(rows), np.empty_like(rows)
    slots = np.full(2 << len(rows).bit_length(), -1, np.int32)
    groups = np.empty(len(rows), np.int32)
    filled = (*columns, *columns[:1] * (COLUMNS - len(columns)))
    count = group_rows(filled, rows, slots, groups, ordered, starts)
    if count >= 0:
        return ordered, starts[:count]
    return _grouped_by_sorting(rows, *columns)


def _grouped_by_sorting(rows: Int64Array, *columns: Int64Array) -> tuple[Int64Array, Int64Array]:
    """As `grouped`, for ids that were chosen so that their hashes collide. It is several times
    slower, but its time does not depend on the ids."""
    chosen = [column[rows] for column in columns]
    order = np.lexsort(chosen)
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = np.logical_or.reduce([np.diff(column[order]) != 0 for column in chosen])
    group_of = np.empty(len(rows), np.int64)
    group_of[order] = order[np.flatnonzero(is_first)][np.cumsum(is_first) - 1]
    order = np.argsort(group_of, kind="stable")
    return rows[order], np.flatnonzero(np.diff(group_of[order], prepend=-1))


def _all_of(values: Mask, firsts: Int64Array) -> Mask:
    """Whether all values are true, for each group that begins at one of `firsts`."""
    if len(firsts) == 0:
        return np.zeros(0, np.bool_)
    return np.logical_and.reduceat(values, firsts)
