"""Compiled loops of the log cleaner: the offset map, and the choice of records to keep.

See `isotherm.kernels` for the rules of kernels, and tables.py for the tables.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"
# mypy: disable-error-code="assignment,var-annotated"

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import register_jitable

from isotherm.kernels.batch_fields import CONTROL_FLAG
from isotherm.kernels.kernel import kernel
from isotherm.kernels.raw_memory import prefetch, word_at
from isotherm.kernels.tables import BATCHES, BYTES, INT64_OUT, PLACES, table_of

# A slot of the offset map: the key's hash, and the newest offset plus one. 0 marks an empty slot,
# so an array of zeros is an empty map and needs no initialization.
SLOT = np.dtype([("high", np.uint64), ("low", np.uint64), ("next_offset", np.int64)])

# How many places ahead a slot is prefetched: at about 10 ns per place, longer than a memory access.
# In a map of ten million keys, a put went from 40 to 26 ns and a look-up from 35 to 18.
_PREFETCH_DISTANCE = 16

_UINT64_OUT = types.Array(types.uint64, 1, "C")
_SLOTS = table_of(SLOT)


@register_jitable(forceinline=True)
def _rotate(value, count):
    return (value << np.uint64(count)) | (value >> np.uint64(64 - count))


@register_jitable(forceinline=True)
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


@register_jitable(forceinline=True)
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


@register_jitable(forceinline=True)
def _first_slot(slots, high):
    """The first slot of a hash: its upper half, scaled to the number of slots (below 2^32)."""
    # A multiplication instead of a modulo: no division, and any number of slots works.
    return np.int64(((high >> np.uint64(32)) * np.uint64(len(slots))) >> np.uint64(32))


@register_jitable(forceinline=True)
def _prefetch_slot(slots, hashes, index):
    """Prefetch the slot of a later place. The map exceeds the CPU caches, and access is random."""
    soon = 2 * (index + _PREFETCH_DISTANCE)
    if soon < len(hashes):
        prefetch(slots, _first_slot(slots, hashes[soon]))


@register_jitable(forceinline=True)
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


@kernel(
    types.UniTuple(types.int64, 2)(
        *(_SLOTS, PLACES, _UINT64_OUT),
        *(types.int64, types.int64, types.int64),
    )
)
def put_offsets(slots, places, hashes, start_offset, entry_count, entry_count_max):
    """Put the offset of each keyed place at or above `start_offset` into the map, in order.

    Returns the number of entries, and the place at which the map was full (even if its key is in
    the map), or -1.
    """
    for index in range(len(places)):
        _prefetch_slot(slots, hashes, index)
        place = places[index]
        if place.key_size < 0 or place.offset < start_offset:
            continue
        # Checked before the lookup, as in Kafka: what is added ends at a definite offset.
        if entry_count >= entry_count_max:
            return entry_count, index
        high = hashes[2 * index]
        low = hashes[2 * index + 1]
        slot = slots[_find_slot(slots, high, low)]
        if slot.next_offset == 0:
            entry_count += 1
            slot.high = high
            slot.low = low
        slot.next_offset = place.offset + 1
    return entry_count, -1


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
