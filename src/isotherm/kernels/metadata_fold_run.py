"""Compiled start and end of a run of the fold: what it keeps, its steps per leader epoch, its rows.

For the tables see metadata_fold.py. Importing this module loads Numba and the kernels.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import register_jitable

from isotherm.kernels.kernel import kernel
from isotherm.kernels.metadata_fold import (
    EPOCH_STRIDE,
    EVENTS_TYPE,
    FINISH,
    FORGET,
    GONE,
    GROUPS,
    INDEX_TYPE,
    KEYS,
    KEYS_TYPE,
    NUMBERS_TYPE,
    OPERATION,
    OPERATIONS,
    SLOT,
    SLOTS,
    SLOTS_TYPE,
    SPAN,
    SPANS,
    STEPS,
    UNTOUCHED,
    hash_of,
    next_position,
)
from isotherm.kernels.tables import BYTES, BYTES_OUT, table_of

# A leader epoch of a partition. Its steps of the run are `count` rows of STEP from `first` on.
GROUP = np.dtype(
    [
        ("place", np.int64),
        ("epoch", np.int64),
        # Highest finished end, -1 for none.
        ("highest", np.int64),
        # A finished segment must start above this for the group to be plain.
        ("tail", np.int64),
        ("is_intricate", np.int64),
        ("first", np.int64),
        ("count", np.int64),
    ]
)
# A change of a segment in one of its leader epochs.
STEP = np.dtype(
    [
        ("slot", np.int64),
        ("action", np.int64),
        ("leader", np.int64),
        ("start", np.int64),
        ("end", np.int64),
        ("is_wanted", np.int64),
    ]
)

_ROW_HEAD_SIZE = 50
_EPOCH_SIZE = 12
_HAS_CUSTOM_METADATA = 1
_TXN_INDEX_EMPTY = 2

GROUPS_TYPE = types.Tuple((table_of(GROUP), INDEX_TYPE))


@register_jitable
def _find_group(place, epoch, groups, index, counts):
    position = hash_of(place, epoch, np.int64(1), index)
    while index[position] != 0:
        number = np.int64(index[position]) - 1
        if groups[number].place == place and groups[number].epoch == epoch:
            return number
        position = next_position(position, index)
    number = counts[GROUPS]
    counts[GROUPS] += 1
    index[position] = number + 1
    group = groups[number]
    group.place = place
    group.epoch = epoch
    group.highest = -1
    group.tail = -1
    group.is_intricate = 0
    group.count = 0
    return number


@kernel(types.void(GROUPS_TYPE, types.int64))
def index_groups(group_table, count):
    """Fill an empty index from its table."""
    groups, index = group_table
    for number in range(count):
        position = hash_of(groups[number].place, groups[number].epoch, np.int64(1), index)
        while index[position] != 0:
            position = next_position(position, index)
        index[position] = number + 1


@register_jitable
def _choose_steps(group, steps, slots, marks, mark):
    """Decide whether a group is plain, and set `is_wanted` of its steps.

    A group is plain if each finished segment lies above all earlier ones: no segment is evicted
    or comes back, so only the last step of each segment has an effect. In other groups all steps
    are wanted.
    """
    is_intricate = group.is_intricate
    for number in range(group.first, group.first + group.count):
        step = steps[number]
        if step.is_wanted:  # until here: the segment was replaced by another form of itself
            is_intricate = 1
        if step.action == FINISH:
            if step.start <= group.tail or step.end < step.start:
                is_intricate = 1
            group.highest = max(group.highest, step.end)
            group.tail = max(group.tail, step.end)
    # Backwards: the first step that is met of a segment is its last one.
    for number in range(group.first + group.count - 1, group.first - 1, -1):
        step = steps[number]
        step.is_wanted = marks[step.slot] != mark
        marks[step.slot] = mark
        if step.action == FORGET:
            if not step.is_wanted:
                is_intricate = 1
            step.is_wanted = step.is_wanted and slots[step.slot].was_live
    if is_intricate:
        for number in range(group.first, group.first + group.count):
            steps[number].is_wanted = True
    group.is_intricate = is_intricate


@kernel(
    types.void(
        *(table_of(OPERATION), SLOTS_TYPE, table_of(SPAN), GROUPS_TYPE),
        *(NUMBERS_TYPE, table_of(STEP), NUMBERS_TYPE, NUMBERS_TYPE),
    )
)
def plan_steps(operations, slot_table, spans, group_table, step_groups, steps, marks, counts):
    """Sort the operations by leader epoch, keeping their order, and mark those with an effect."""
    slots, _ = slot_table
    groups, index = group_table
    # A counting sort in two passes: count the steps of each group, then write them in place.
    for number in range(counts[GROUPS]):
        groups[number].count = 0
    total = np.int64(0)
    for number in range(counts[OPERATIONS]):
        operation = operations[number]
        place = slots[operation.slot].place
        for span_number in range(operation.spans_count):
            epoch = spans[operation.spans_start + span_number].epoch
            group_number = _find_group(place, epoch, groups, index, counts)
            groups[group_number].count += 1
            step_groups[total] = group_number
            total += 1
    counts[STEPS] = total
    first = np.int64(0)
    for number in range(counts[GROUPS]):
        groups[number].first = first
        first += groups[number].count
        groups[number].count = 0
    total = np.int64(0)
    for number in range(counts[OPERATIONS]):
        operation = operations[number]
        for span_number in range(operation.spans_count):
            span = spans[operation.spans_start + span_number]
            group = groups[step_groups[total]]
            step = steps[group.first + group.count]
            group.count += 1
            total += 1
            step.slot = operation.slot
            step.action = operation.action
            step.leader = operation.leader
            step.start = span.start
            step.end = span.end
            step.is_wanted = operation.is_replaced
    for number in range(counts[GROUPS]):
        _choose_steps(groups[number], steps, slots, marks, number + 1)


@register_jitable(forceinline=True)
def _write_int(value, size, out, position):
    for index in range(size):
        out[position + index] = np.uint8((value >> (8 * (size - 1 - index))) & 0xFF)
    return position + size


@kernel(types.int64(EVENTS_TYPE, BYTES, table_of(SLOT), NUMBERS_TYPE, BYTES_OUT, NUMBERS_TYPE))
def pack_rows(events, value_data, slots, wanted, out, ends):
    """The rows (segment_rows.py) of segments whose base is in this run, concatenated.

    `ends` gets the end of each row. Returns the size that `out` must have. Nothing is written if
    `out` is too short.
    """
    # The size is computed first, as kernels cannot allocate: the caller retries with more room.
    size = np.int64(0)
    for number in range(len(wanted)):
        slot = slots[wanted[number]]
        last = events[slot.update if slot.update >= 0 else slot.base]
        size += _ROW_HEAD_SIZE + events[slot.base].epochs_count * _EPOCH_SIZE
        size += max(last.custom_size, 0)
    if size > len(out):
        return size
    position = np.int64(0)
    for number in range(len(wanted)):
        slot = slots[wanted[number]]
        base = events[slot.base]
        last = events[slot.update if slot.update >= 0 else slot.base]
        flags = _HAS_CUSTOM_METADATA if last.custom_size >= 0 else 0
        flags |= _TXN_INDEX_EMPTY if base.txn_index_empty else 0
        position = _write_int(base.start, 8, out, position)
        position = _write_int(base.end, 8, out, position)
        position = _write_int(base.max_timestamp, 8, out, position)
        position = _write_int(last.event_timestamp, 8, out, position)
        position = _write_int(last.broker, 4, out, position)
        position = _write_int(base.size, 4, out, position)
        position = _write_int(base.leader, 4, out, position)
        position = _write_int(last.state, 1, out, position)
        position = _write_int(flags, 1, out, position)
        position = _write_int(base.epochs_count, 4, out, position)
        for epoch in range(base.epochs_count):
            source = base.epochs_start + epoch * EPOCH_STRIDE
            for index in range(_EPOCH_SIZE):
                out[position + index] = value_data[source + index]
            position += _EPOCH_SIZE
        for index in range(max(last.custom_size, 0)):
            out[position + index] = value_data[last.custom_start + index]
        position += max(last.custom_size, 0)
        ends[number] = position
    return size


@register_jitable
def _keep_keys(keys, key_index, moved, counts):
    keys_count = np.int64(0)
    for number in range(counts[KEYS]):
        if keys[number].slot < 0:
            continue
        keys[keys_count] = keys[number]
        key = keys[keys_count]
        key.slot = moved[key.slot]
        key.is_touched = 0
        position = hash_of(key.place, key.end, np.int64(0), key_index)
        while key_index[position] != 0:
            position = next_position(position, key_index)
        keys_count += 1
        key_index[position] = keys_count
    counts[KEYS] = keys_count


@kernel(
    types.void(
        *(SLOTS_TYPE, table_of(SPAN), table_of(SPAN), KEYS_TYPE),
        *(NUMBERS_TYPE, NUMBERS_TYPE),
    )
)
def begin_run(slot_table, spans, kept_spans, key_table, moved, counts):
    """Drop what this run does not need.

    Dropped are gone segments without a key, keys after their tombstone, and spans of segments
    that are not live. Spans of live ones go to `kept_spans`. `moved` has room for a number per slot.
    """
    slots, slot_index = slot_table
    keys, key_index = key_table
    # First a mark of the slots that a key names, then the new number of each slot.
    moved[:] = 0
    for number in range(counts[KEYS]):
        if keys[number].slot >= 0:
            moved[keys[number].slot] = 1
    # Entries cannot be removed from an open-addressing index one by one, so both are rebuilt.
    slot_index[:] = 0
    key_index[:] = 0
    slots_count = np.int64(0)
    spans_count = np.int64(0)
    for number in range(counts[SLOTS]):
        is_live = slots[number].state != GONE
        if not is_live and not moved[number]:
            continue
        slots[slots_count] = slots[number]
        moved[number] = slots_count
        slot = slots[slots_count]
        slot.was_live = is_live
        slot.is_touched = 0
        slot.base = UNTOUCHED
        slot.update = UNTOUCHED
        slot.spans_count = slot.spans_count if is_live else 0
        for span_number in range(slot.spans_count):
            kept_spans[spans_count + span_number] = spans[slot.spans_start + span_number]
        slot.spans_start = spans_count
        spans_count += slot.spans_count
        position = hash_of(slot.id_high, slot.id_low, slot.place, slot_index)
        while slot_index[position] != 0:
            position = next_position(position, slot_index)
        slots_count += 1
        slot_index[position] = slots_count
    counts[SLOTS] = slots_count
    counts[SPANS] = spans_count
    _keep_keys(keys, key_index, moved, counts)
