"""Compiled loops of the log cleaner: the offset map, and the choice of records to keep.

Two arrays of bits, `newest` and `special`, describe the offsets from `first_offset` on: those that
are the newest of their key, and those of records without a key or a value. They may be empty.

See `isotherm.kernels` for the rules of kernels, and tables.py for the tables.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"
# mypy: disable-error-code="assignment,var-annotated"

from __future__ import annotations

import numpy as np

from isotherm.kernels import types
from isotherm.kernels.batch_fields import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    TRANSACTIONAL_FLAG,
)
from isotherm.kernels.kernel import kernel
from isotherm.kernels.parts import inlined
from isotherm.kernels.raw_memory import prefetch, word_at
from isotherm.kernels.tables import BATCHES, BYTES, INT8_OUT, INT64_OUT, PLACES, table_of

# A slot of the offset map: the key's hash, and the newest offset plus one. 0 marks an empty slot,
# so an array of zeros is an empty map and needs no initialization.
SLOT = np.dtype([("high", np.uint64), ("low", np.uint64), ("next_offset", np.int64)])

# How many places ahead a slot is prefetched: at about 10 ns per place, longer than a memory access.
# In a map of ten million keys, a put went from 40 to 26 ns and a look-up from 35 to 18.
_PREFETCH_DISTANCE = 16

# What stays of a batch, as far as the bits alone tell.
UNDECIDED = 0
KEEPS_NONE = 1
KEEPS_ALL = 2

_UINT64_OUT = types.Array(types.uint64, 1, "C")
_SLOTS = table_of(SLOT)


@inlined
def _rotate(value, count):
    return (value << np.uint64(count)) | (value >> np.uint64(64 - count))


@inlined
def _sip_round(v0, v1, v2, v3):
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inlined
def _siphash(source, start, size, key_0, key_1):
    """SipHash-2-4 with 128 bits of output (Aumasson, Bernstein), as two little-endian words."""
    v0 = key_0 ^ np.uint64(0x736F6D6570736575)
    v1 = key_1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = key_0 ^ np.uint64(0x6C7967656E657261)
    v3 = key_1 ^ np.uint64(0x7465646279746573)
    position = start
    last_word = start + size - 8
    while position <= last_word:
        word = word_at(source, position)
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
        position += 8
    # The last block has the remaining bytes, and the size in its highest byte (SipHash).
    word = np.uint64(size & 0xFF) << np.uint64(56)
    for index in range(start + size - position):
        word |= np.uint64(source[position + index]) << np.uint64(8 * index)
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    high = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return high, v0 ^ v1 ^ v2 ^ v3


@kernel(types.void(BYTES, BYTES, BATCHES, PLACES, _UINT64_OUT, _UINT64_OUT))
def hash_keys(data, unpacked, batches, places, hash_key, hashes):
    """Write the two-word hash of each place's key. Words of null keys are not written."""
    key_0 = hash_key[0]
    key_1 = hash_key[1]
    for index in range(len(places)):
        place = places[index]
        if place.key_size >= 0:
            source = unpacked if batches[place.batch].is_unpacked else data
            high, low = _siphash(source, place.key_start, np.int64(place.key_size), key_0, key_1)
            hashes[2 * index] = high
            hashes[2 * index + 1] = low


@inlined
def _first_slot(slots, high):
    """The first slot of a hash: its upper half, scaled to the number of slots (below 2^32)."""
    # A multiplication instead of a modulo: no division, and any number of slots works.
    return np.int64(((high >> np.uint64(32)) * np.uint64(len(slots))) >> np.uint64(32))


@inlined
def _prefetch_slot(slots, hashes, index):
    """Prefetch the slot of a later place. The map exceeds the CPU caches, and access is random."""
    soon = 2 * (index + _PREFETCH_DISTANCE)
    if soon < len(hashes):
        prefetch(slots, _first_slot(slots, hashes[soon]))


@inlined
def _find_slot(slots, high, low):
    """The slot of a hash, or the empty slot for it; -1 if all other slots are used."""
    index = _first_slot(slots, high)
    for _ in range(len(slots)):
        slot = slots[index]
        if slot.next_offset == 0 or (slot.high == high and slot.low == low):
            return index
        index += 1
        if index == len(slots):
            index = 0
    return -1


@inlined
def _set_bit(bits, index):
    bits[index >> 6] |= np.uint64(1) << np.uint64(index & 63)


@inlined
def _clear_bit(bits, index):
    bits[index >> 6] &= ~(np.uint64(1) << np.uint64(index & 63))


@inlined
def _is_set(bits, index):
    return bits[index >> 6] >> np.uint64(index & 63) & np.uint64(1) != 0


@kernel(
    types.UniTuple(types.int64, 3)(
        *(_SLOTS, PLACES, _UINT64_OUT),
        *(_UINT64_OUT, _UINT64_OUT),
        *(types.int64, types.int64, types.int64),
    )
)
def put_offsets(slots, places, hashes, newest, special, first_offset, entry_count, entry_count_max):
    """Put the offset of each keyed place at or above `first_offset` into the map, in order.

    Returns the number of entries, the place at which the map was full (even if its key is in the
    map) or -1, and 1 if the bits can stand for the records: their offsets rise, and have bits.
    """
    has_bits = len(newest) > 0
    last_offset = np.int64(-1)
    end_offset = first_offset + 64 * len(newest)
    are_right = 1
    for index in range(len(places)):
        _prefetch_slot(slots, hashes, index)
        place = places[index]
        if place.offset < first_offset:
            continue
        if place.offset <= last_offset or place.offset >= end_offset:
            are_right = 0
            has_bits = False
        last_offset = place.offset
        if has_bits and (place.key_size < 0 or place.value_size < 0):
            _set_bit(special, place.offset - first_offset)
        if place.key_size < 0:
            continue
        # Checked before the lookup, as in Kafka: what is added ends at a definite offset.
        if entry_count >= entry_count_max:
            return entry_count, index, are_right
        high = hashes[2 * index]
        low = hashes[2 * index + 1]
        slot = slots[_find_slot(slots, high, low)]
        if slot.next_offset == 0:
            entry_count += 1
            slot.high = high
            slot.low = low
        elif has_bits:
            _clear_bit(newest, slot.next_offset - 1 - first_offset)
        if has_bits:
            _set_bit(newest, place.offset - first_offset)
        slot.next_offset = place.offset + 1
    return entry_count, -1, are_right


@kernel(
    types.int64(
        *(_SLOTS, BATCHES, PLACES, _UINT64_OUT),
        *(types.int64, types.int64),
        INT64_OUT,
    )
)
def choose_records(slots, batches, places, hashes, latest_offset, now, expiry):
    """Set `is_kept` of each place in a data batch; returns how many were dropped without a key.

    Kept are records of control batches, records above `latest_offset`, and records without a newer
    offset of their key, except tombstones past the `expiry` of their batch (which may be infinite).
    """
    invalid_count = 0
    for index in range(len(places)):
        _prefetch_slot(slots, hashes, index)
        place = places[index]
        is_control = batches[place.batch].attributes & CONTROL_FLAG != 0
        if is_control or place.offset > latest_offset:
            continue
        if place.key_size < 0:
            place.is_kept = 0
            invalid_count += 1
            continue
        slot = _find_slot(slots, hashes[2 * index], hashes[2 * index + 1])
        # Below zero: the map has no record of the key, so none is newer.
        is_newest = slot < 0 or place.offset + 1 >= slots[slot].next_offset
        has_expired = place.value_size < 0 and now >= expiry[place.batch]
        place.is_kept = is_newest and not has_expired
    return invalid_count


@kernel(
    types.int64(
        *(BATCHES, PLACES),
        *(_UINT64_OUT, types.int64),
        *(types.int64, types.int64, INT64_OUT),
    )
)
def choose_newest(batches, places, newest, first_offset, latest_offset, now, expiry):
    """The same as `choose_records`, by the bits: for places at or above `first_offset` in batches
    that are neither transactional nor control batches."""
    invalid_count = 0
    for index in range(len(places)):
        place = places[index]
        if place.offset > latest_offset:
            continue
        if place.key_size < 0:
            invalid_count += 1
        has_expired = place.value_size < 0 and now >= expiry[place.batch]
        place.is_kept = _is_set(newest, place.offset - first_offset) and not has_expired
    return invalid_count


@inlined
def _bits_of(bits, word_index, first, last):
    """The bits of one word that lie in [first, last]."""
    word = bits[word_index]
    if word_index == first >> 6:
        word &= ~np.uint64(0) << np.uint64(first & 63)
    if word_index == last >> 6:
        word &= ~np.uint64(0) >> np.uint64(63 - (last & 63))
    return word


@inlined
def _popcount(word):
    # LLVM makes one instruction of it.
    word -= word >> np.uint64(1) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + (
        word >> np.uint64(2) & np.uint64(0x3333333333333333)
    )
    word = word + (word >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64(word * np.uint64(0x0101010101010101) >> np.uint64(56))


@kernel(
    types.void(
        *(BATCHES, _UINT64_OUT, _UINT64_OUT),
        *(types.int64, types.int64, INT8_OUT),
    )
)
def decide_batches(batches, newest, special, first_offset, latest_offset, fates):
    """Set what stays of each batch in [first_offset, latest_offset], both inclusive, without a look
    at its records. UNDECIDED are batches of which single records must be chosen."""
    for row_index in range(len(batches)):
        row = batches[row_index]
        fates[row_index] = UNDECIDED
        if row.attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG | DELETE_HORIZON_FLAG):
            continue
        if row.base_offset < first_offset or row.base_offset > latest_offset:
            continue
        if row.last_offset_delta > latest_offset - row.base_offset:
            continue
        first = row.base_offset - first_offset
        last = first + row.last_offset_delta
        kept_count = 0
        is_special = False
        for word_index in range(first >> 6, (last >> 6) + 1):
            kept_count += _popcount(_bits_of(newest, word_index, first, last))
            is_special |= _bits_of(special, word_index, first, last) != 0
        if is_special:
            continue
        if kept_count == 0:
            fates[row_index] = KEEPS_NONE
        elif kept_count == row.records_count:
            fates[row_index] = KEEPS_ALL
