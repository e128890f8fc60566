"""The newest offset of each key in the dirty section of a log, in memory of fixed size.

24 bytes per slot, as in Kafka's SkimpyOffsetMap, so log.cleaner.dedupe.buffer.size means the same:
a 16-byte hash stands for the key, and 8 bytes are its offset. A record is dropped if the map has a
newer offset for its hash, so if two keys had one hash, the older key would lose its newest record.
Two measures prevent this (docs/decisions/0022):
- n keys collide by chance with a probability below n^2 / 2^129: 4e-26 for the 5 million keys of
  a full map of 128 MiB.
- The hash is keyed, SipHash-2-4, with a new random key for each map. A client that chooses record
  keys cannot make two of them collide. (Kafka's MD5 has known collisions.)

Open addressing with linear probing. The hash's upper bits select the slot.

Two bits for each offset of the dirty section say what the map knows of its record, so the second
pass needs neither hash nor slot for it, and not even the records of a batch that loses all or none
(docs/decisions/0324).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.kernels import cleaner as kernels
from isotherm.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from isotherm.types import UNKNOWN_OFFSET, Offset, TimestampMs

if TYPE_CHECKING:
    import numpy.typing as npt

    from isotherm.record.batch_table import BatchTable, ByteArray, Int64Array
    from isotherm.record.filter import PlaceTable

    HashTable: TypeAlias = npt.NDArray[np.uint64]
    Fates: TypeAlias = npt.NDArray[np.int8]

SLOT_SIZE = kernels.SLOT.itemsize
# Kafka's map is a single ByteBuffer, which is limited to this size.
MEMORY_SIZE_MAX = 2**31 - 1

assert SLOT_SIZE == 24


# Slots per key of a map that is sized for its records, if all keys differ.
SLOTS_PER_RECORD = 2

# The bits take at most this share of the map's memory, beside it. A dirty section of more offsets
# (16 million for each 32 MiB, gaps included) has none.
BITS_SHARE = 1 / 8


class OffsetMap:
    """The highest offset of each key. Not thread-safe. Its memory is freed with it."""

    def __init__(
        self,
        memory_size: int,
        load_factor: float,
        rng: random.Random,
        *,
        first_offset: Offset,
        end_offset: Offset,
    ) -> None:
        """Reserve at most `memory_size` bytes for slots, and fill at most `load_factor` of them.

        The dirty section is [first_offset, end_offset).
        """
        self.first_offset = first_offset
        # Offsets are unique, so the dirty section has at most this many records.
        records_max = end_offset - first_offset
        self._slot_count_max = min(memory_size, MEMORY_SIZE_MAX) // SLOT_SIZE
        self.entry_count_max = min(int(self._slot_count_max * load_factor), self._slot_count_max)
        assert self.entry_count_max > 0, "not even one key fits"
        slot_count = min(self._slot_count_max, max(SLOTS_PER_RECORD * records_max, 1))
        self.entry_count = 0
        self.latest_offset: Offset = UNKNOWN_OFFSET
        """All keyed records from the first dirty offset up to here, inclusive, are in the map."""
        self._slots = np.zeros(slot_count, dtype=kernels.SLOT)
        words = (max(records_max, 0) + 63) // 64
        if 2 * 8 * words > BITS_SHARE * memory_size:
            words = 0
        self._newest = np.zeros(words, dtype=np.uint64)
        self._special = np.zeros(words, dtype=np.uint64)
        self._hash_key = np.frombuffer(rng.randbytes(16), dtype=np.uint64).copy()

    @property
    def utilization(self) -> float:
        """Share of used slots, of all slots that fit into the memory."""
        return self.entry_count / self._slot_count_max

    def hash_keys(
        self, data: ByteArray, unpacked: ByteArray, batches: BatchTable, places: PlaceTable
    ) -> HashTable:
        hashes = np.empty(2 * len(places), dtype=np.uint64)
        kernels.hash_keys(data, unpacked, batches, places, self._hash_key, hashes)
        return hashes

    def put(self, places: PlaceTable, hashes: HashTable) -> int:
        """Add the keyed records of the dirty section, in ascending order.

        Returns the index of the first record that did not fit, or -1. The caller updates
        `latest_offset`.
        """
        self.entry_count, rejected, are_right = kernels.put_offsets(
            *(self._slots, places, hashes, self._newest, self._special),
            *(self.first_offset, self.entry_count, self.entry_count_max),
        )
        # No writer gives two records one offset, or one beyond the section. If one has, they are
        # chosen by their keys.
        if not are_right:
            self._newest = self._special = np.zeros(0, dtype=np.uint64)
        return int(rejected)

    def decide_batches(self, batches: BatchTable) -> Fates:
        """KEEPS_NONE, KEEPS_ALL or UNDECIDED (`isotherm.kernels.cleaner`) for each batch, without
        a look at its records."""
        fates = np.zeros(len(batches), dtype=np.int8)
        if not len(self._newest):
            return fates
        kernels.decide_batches(
            *(batches, self._newest, self._special),
            *(self.first_offset, self._last_decided_offset, fates),
        )
        return fates

    def has_bits_for(self, batches: BatchTable) -> bool:
        """Whether `choose_newest` can choose their records. The first pass may have skipped batches
        of transactions, so the bits say nothing of those."""
        flags = batches["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)
        return bool(
            len(self._newest) and batches["base_offset"][0] >= self.first_offset and not flags.any()
        )

    def choose_newest(
        self,
        batches: BatchTable,
        places: PlaceTable,
        *,
        now_ms: TimestampMs,
        expiry_ms: Int64Array,
    ) -> int:
        """The same as `choose_records`, for batches with `has_bits_for`."""
        return int(
            kernels.choose_newest(
                *(batches, places, self._newest, self.first_offset),
                *(self._last_decided_offset, now_ms, expiry_ms),
            )
        )

    @property
    def _last_decided_offset(self) -> Offset:
        """The last offset that the bits may be read for."""
        return min(self.latest_offset, self.first_offset + 64 * len(self._newest) - 1)

    def choose_records(
        self,
        batches: BatchTable,
        places: PlaceTable,
        hashes: HashTable,
        *,
        now_ms: TimestampMs,
        expiry_ms: Int64Array,
    ) -> int:
        """Set `is_kept` of each record; returns how many were dropped because they have no key.

        A record is kept if it lies above `latest_offset`, or if the map has no newer offset of its
        key and it is not a tombstone whose batch has passed its `expiry_ms`.
        """
        return int(
            kernels.choose_records(
                self._slots, batches, places, hashes, self.latest_offset, now_ms, expiry_ms
            )
        )
