"""Compiled fold of decoded metadata records. Importing this module loads Numba and the kernels.

The fold's tables (rows of PLACE, SLOT, SPAN, KEY and, in metadata_fold_run.py, GROUP) live through all
runs of records; a run is what `fold.py` passes at a time. Each table except SPAN has an index, an
open-addressing hash table: a power of two of int32, at most half full, with row + 1 at the hash of the
row's identity, or 0. The caller provides capacity: no kernel allocates. The rules are those of cache.py.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import register_jitable

from isotherm.kernels.kernel import kernel
from isotherm.kernels.metadata_events import (
    ADD,
    EVENT,
    ODD,
    PARTITION_DELETE,
    PARTITION_TOMBSTONE,
    PUT,
    TOMBSTONE,
    UPDATE,
)
from isotherm.kernels.raw_memory import prefetch
from isotherm.kernels.record_reader import read_int
from isotherm.kernels.tables import BYTES, table_of

# A user partition. `event` is the first record of the run about it. `deletion` is the last record
# about its deletion: UNTOUCHED, or NO_DELETION after a tombstone.
PLACE = np.dtype(
    [
        ("topic_high", np.int64),
        ("topic_low", np.int64),
        ("partition", np.int64),
        ("name_hash", np.int64),
        ("event", np.int64),
        ("is_wanted", np.int64),
        ("is_closed", np.int64),
        ("deletion", np.int64),
    ]
)
# A segment with its `state`, or GONE. `base` and `update` are the records of this run that define
# it; UNTOUCHED if they belong to an earlier run.
SLOT = np.dtype(
    [
        ("place", np.int64),
        ("id_high", np.int64),
        ("id_low", np.int64),
        ("state", np.int64),
        ("end", np.int64),
        ("leader", np.int64),
        ("base", np.int64),
        ("update", np.int64),
        ("was_live", np.int64),
        ("is_touched", np.int64),
        ("spans_start", np.int64),
        ("spans_count", np.int64),
    ]
)
SPAN = np.dtype([("epoch", np.int64), ("start", np.int64), ("end", np.int64)])
# A level-1 key, and the segment of its last record; UNTOUCHED after its tombstone.
KEY = np.dtype(
    [
        ("place", np.int64),
        ("end", np.int64),
        ("leader", np.int64),
        ("slot", np.int64),
        ("is_touched", np.int64),
    ]
)
# A change of a segment.
OPERATION = np.dtype(
    [
        ("slot", np.int64),
        ("action", np.int64),
        ("leader", np.int64),
        ("is_replaced", np.int64),
        ("spans_start", np.int64),
        ("spans_count", np.int64),
    ]
)
UNTOUCHED = -1
NO_DELETION = -2
GONE = -1

START = 0
FINISH = 1
START_DELETION = 2
FORGET = 3

STARTED = 0
FINISHED = 1
DELETE_STARTED = 2
DELETE_FINISHED = 3
_PARTITION_DELETED = 2

# One event can forget the key's previous segment, forget the segment's old form, and apply the new.
OPERATIONS_PER_EVENT = 3

# Indexes into the array of counts.
PLACES = 0
SLOTS = 1
SPANS = 2
KEYS = 3
GROUPS = 4
OPERATIONS = 5
STEPS = 6
BAD = 7
COUNTS = 8

EPOCH_STRIDE = 13  # epoch i32, start offset i64, and a byte for no tagged fields

# How many events ahead an index entry is prefetched: segment ids are random, so each is a cache miss.
_PREFETCH_DISTANCE = 8


INDEX_TYPE = types.Array(types.int32, 1, "C")
NUMBERS_TYPE = types.Array(types.int64, 1, "C")
EVENTS_TYPE = table_of(EVENT)
PLACES_TYPE = types.Tuple((table_of(PLACE), INDEX_TYPE))
SLOTS_TYPE = types.Tuple((table_of(SLOT), INDEX_TYPE))
KEYS_TYPE = types.Tuple((table_of(KEY), INDEX_TYPE))


@register_jitable(forceinline=True)
def hash_of(first, second, third, index):
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (np.uint64(second) + (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= (np.uint64(third) + (mixed >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.int64(mixed & np.uint64(len(index) - 1))


@register_jitable(forceinline=True)
def next_position(position, index):
    return (position + 1) & (len(index) - 1)


@register_jitable
def _find_place(row, places, index, count, by_name):
    """The partition of an event. With `by_name` a new partition is added. Without, the latest
    partition of that id is returned, or -1."""
    # The name is not part of the hash: a tombstone has none, and must find all partitions of its id.
    position = hash_of(row.topic_high, row.topic_low, row.partition, index)
    found = np.int64(-1)
    while index[position] != 0:
        number = np.int64(index[position]) - 1
        place = places[number]
        if (
            place.topic_high == row.topic_high
            and place.topic_low == row.topic_low
            and place.partition == row.partition
        ):
            if by_name and place.name_hash == row.name_hash:
                return number
            found = max(found, number)
        position = next_position(position, index)
    if not by_name:
        return found
    index[position] = count + 1
    place = places[count]
    place.topic_high = row.topic_high
    place.topic_low = row.topic_low
    place.partition = row.partition
    place.name_hash = row.name_hash
    place.is_wanted = 0
    place.is_closed = 0
    place.deletion = UNTOUCHED
    return count


@kernel(types.int64(EVENTS_TYPE, PLACES_TYPE, types.int64))
def find_places(events, place_table, count):
    """Set the partition of each event; returns the number of partitions.

    A tombstone has no topic name: it gets the partition that was added last.
    """
    places, index = place_table
    last = np.int64(-1)
    for number in range(len(events)):
        row = events[number]
        if row.kind >= ODD:
            continue
        by_name = row.kind != TOMBSTONE and row.kind != PARTITION_TOMBSTONE
        # Consecutive records often concern one partition, which saves the lookup.
        if (
            by_name
            and last >= 0
            and places[last].topic_low == row.topic_low
            and places[last].topic_high == row.topic_high
            and places[last].partition == row.partition
            and places[last].name_hash == row.name_hash
        ):
            row.place = last
            continue
        row.place = _find_place(row, places, index, count, by_name)
        if row.place == count:
            places[count].event = number
            count += 1
        if by_name:
            last = row.place
    return count


@kernel(types.void(PLACES_TYPE, types.int64))
def index_places(place_table, count):
    """Fill an empty index from its table."""
    places, index = place_table
    for number in range(count):
        place = places[number]
        position = hash_of(place.topic_high, place.topic_low, place.partition, index)
        while index[position] != 0:
            position = next_position(position, index)
        index[position] = number + 1


@register_jitable(forceinline=True)
def _prefetch_slot(events, number, index):
    """Prefetch the index entry of a later event."""
    if number < len(events):
        row = events[number]
        prefetch(index, hash_of(row.id_high, row.id_low, row.place, index))


@register_jitable
def _find_slot(place, id_high, id_low, slots, index, counts):
    """The slot of a segment. A new one is added as GONE."""
    position = hash_of(id_high, id_low, place, index)
    while index[position] != 0:
        number = np.int64(index[position]) - 1
        slot = slots[number]
        if slot.id_low == id_low and slot.id_high == id_high and slot.place == place:
            return number
        position = next_position(position, index)
    number = counts[SLOTS]
    counts[SLOTS] += 1
    index[position] = number + 1
    slot = slots[number]
    slot.place = place
    slot.id_high = id_high
    slot.id_low = id_low
    slot.state = GONE
    slot.was_live = 0
    slot.is_touched = 0
    slot.base = UNTOUCHED
    slot.update = UNTOUCHED
    slot.spans_count = 0
    return number


@register_jitable
def _find_key(place, end, leader, keys, index, counts, is_made):
    """The row of a key. A new key is added if `is_made`, else -1 is returned."""
    # The leader is not part of the hash: `_awaits_tombstone` looks for any leader of an end offset.
    position = hash_of(place, end, np.int64(0), index)
    while index[position] != 0:
        number = np.int64(index[position]) - 1
        key = keys[number]
        if key.leader == leader and key.end == end and key.place == place:
            return number
        position = next_position(position, index)
    if not is_made:
        return np.int64(-1)
    number = counts[KEYS]
    counts[KEYS] += 1
    index[position] = number + 1
    key = keys[number]
    key.place = place
    key.end = end
    key.leader = leader
    key.slot = UNTOUCHED
    return number


@register_jitable
def _awaits_tombstone(place, end, slot_number, keys, index):
    """Whether the last record of a key with this end offset is about the segment."""
    position = hash_of(place, end, np.int64(0), index)
    while index[position] != 0:
        key = keys[np.int64(index[position]) - 1]
        if key.slot == slot_number and key.end == end and key.place == place:
            return True
        position = next_position(position, index)
    return False


@register_jitable(forceinline=True)
def _is_valid_transition(source, target):
    if source == STARTED:
        return target != DELETE_FINISHED
    if source == FINISHED:
        return target in (FINISHED, DELETE_STARTED)
    return target >= DELETE_STARTED


@register_jitable
def _add_spans(row, data, spans, counts):
    """Cut the segment at its leader epochs, append the parts to `spans`; returns the first."""
    first = counts[SPANS]
    for number in range(row.epochs_count):
        position = row.epochs_start + number * EPOCH_STRIDE
        span = spans[first + number]
        span.epoch = read_int(data, position, 4)
        span.start = read_int(data, position + 4, 8)
        span.end = row.end
        if number > 0:
            spans[first + number - 1].end = span.start - 1
    counts[SPANS] += row.epochs_count
    return first


@register_jitable(forceinline=True)
def _have_same_spans(first, second, count, spans):
    for number in range(count):
        one = spans[first + number]
        other = spans[second + number]
        if one.epoch != other.epoch or one.start != other.start or one.end != other.end:
            return False
    return True


@register_jitable(forceinline=True)
def _emit(slot_number, slot, action, is_replaced, operations, counts):
    operation = operations[counts[OPERATIONS]]
    counts[OPERATIONS] += 1
    operation.slot = slot_number
    operation.action = action
    operation.leader = slot.leader
    operation.is_replaced = is_replaced
    operation.spans_start = slot.spans_start
    operation.spans_count = slot.spans_count
    slot.is_touched = 1


@register_jitable
def _become(slot_number, slot, number, row, data, spans, operations, counts):
    """Apply the whole state of a segment from a record."""
    was_live = slot.state != GONE
    old_start = slot.spans_start
    old_count = slot.spans_count
    new_start = _add_spans(row, data, spans, counts)
    is_other = old_count != row.epochs_count or not _have_same_spans(
        old_start, new_start, old_count, spans
    )
    # Steps of leader epochs that the segment no longer covers must be undone first.
    if was_live and (row.state == STARTED or is_other):
        _emit(slot_number, slot, FORGET, True, operations, counts)
    slot.spans_start = new_start
    slot.spans_count = row.epochs_count
    slot.end = row.end
    slot.leader = row.leader
    slot.base = number
    slot.update = UNTOUCHED
    slot.is_touched = 1
    if row.state == DELETE_FINISHED:
        if was_live:
            _emit(slot_number, slot, FORGET, False, operations, counts)
        slot.state = GONE
    else:
        _emit(slot_number, slot, row.state, False, operations, counts)
        slot.state = row.state


@register_jitable
def _put(number, row, data, slots, slot_index, spans, keys, key_index, operations, counts):
    slot_number = _find_slot(row.place, row.id_high, row.id_low, slots, slot_index, counts)
    slot = slots[slot_number]
    source = slot.state
    # Its deletion was recorded and the tombstone is still to come: a late record must not revive it.
    if source == GONE and _awaits_tombstone(row.place, row.end, slot_number, keys, key_index):
        source = DELETE_FINISHED
    key_number = _find_key(row.place, row.end, row.leader, keys, key_index, counts, True)
    key = keys[key_number]
    # Compaction keeps the last record of a key only, so its previous segment is forgotten.
    if key.slot >= 0 and key.slot != slot_number:
        other = slots[key.slot]
        if other.state != GONE and other.end == row.end and other.leader == row.leader:
            _emit(key.slot, other, FORGET, False, operations, counts)
            other.state = GONE
    key.slot = slot_number
    key.is_touched = 1
    if row.state < source:
        return
    _become(slot_number, slot, number, row, data, spans, operations, counts)


@register_jitable
def _update(number, row, slots, slot_index, operations, counts):
    slot_number = _find_slot(row.place, row.id_high, row.id_low, slots, slot_index, counts)
    slot = slots[slot_number]
    # Updates of unknown segments and invalid transitions have no effect, as in the cache.
    if slot.state == GONE or not _is_valid_transition(slot.state, row.state):
        return
    _emit(slot_number, slot, row.state, False, operations, counts)
    slot.update = number
    slot.state = GONE if row.state == DELETE_FINISHED else row.state


@register_jitable
def _add(number, row, data, slots, slot_index, spans, operations, counts):
    slot_number = _find_slot(row.place, row.id_high, row.id_low, slots, slot_index, counts)
    slot = slots[slot_number]
    if slot.state in (GONE, STARTED):
        _become(slot_number, slot, number, row, data, spans, operations, counts)


@register_jitable
def _forget_key(row, slots, keys, key_index, operations, counts):
    """Apply a tombstone: forget the segment of the key's last record."""
    number = _find_key(row.place, row.end, row.leader, keys, key_index, counts, False)
    if number < 0 or keys[number].slot < 0:
        return
    slot_number = keys[number].slot
    slot = slots[slot_number]
    keys[number].slot = UNTOUCHED
    keys[number].is_touched = 1
    # The segment may have moved to another key since.
    if slot.state != GONE and slot.end == row.end and slot.leader == row.leader:
        _emit(slot_number, slot, FORGET, False, operations, counts)
        slot.state = GONE


@kernel(
    types.void(
        *(EVENTS_TYPE, BYTES, PLACES_TYPE, SLOTS_TYPE, table_of(SPAN), KEYS_TYPE),
        *(table_of(OPERATION), NUMBERS_TYPE, NUMBERS_TYPE),
    )
)
def apply_events(
    events, value_data, place_table, slot_table, spans, key_table, operations, bad, counts
):
    """Apply the events of wanted partitions, in order.

    `bad` gets the numbers of events that contradict their kind.
    """
    places, _ = place_table
    slots, slot_index = slot_table
    keys, key_index = key_table
    for number in range(len(events)):
        _prefetch_slot(events, number + _PREFETCH_DISTANCE, slot_index)
        row = events[number]
        if row.kind >= ODD or row.place < 0:
            continue
        place = places[row.place]
        if not place.is_wanted or place.is_closed:
            continue
        if row.kind == UPDATE and row.state != STARTED:
            _update(number, row, slots, slot_index, operations, counts)
        elif row.kind == ADD and row.state == STARTED:
            _add(number, row, value_data, slots, slot_index, spans, operations, counts)
        elif row.kind == PUT:
            _put(
                *(number, row, value_data, slots, slot_index),
                *(spans, keys, key_index, operations, counts),
            )
        elif row.kind == TOMBSTONE:
            _forget_key(row, slots, keys, key_index, operations, counts)
        elif row.kind == PARTITION_DELETE:
            place.is_closed = row.state == _PARTITION_DELETED
            place.deletion = number
        elif row.kind == PARTITION_TOMBSTONE:
            place.deletion = NO_DELETION
        else:
            bad[counts[BAD]] = number
            counts[BAD] += 1
