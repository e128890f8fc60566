"""The newest offset of each key in the dirty part of a log, in memory of a fixed size.

24 bytes a slot, as Kafka's SkimpyOffsetMap, so that log.cleaner.dedupe.buffer.size means the same:
16 bytes of hash stand for the key, and 8 hold its offset. A record is dropped because the map knows a
newer offset for its hash, so two keys with one hash would cost the older key its newest record.
Two measures against that (docs/decisions/0022):
- n keys collide by chance with a probability below n^2 / 2^129: 4e-26 for the 5 million keys of
  a full map of 128 MiB;
- the hash is keyed, SipHash-2-4, with a key that is drawn anew for each map: who chooses record keys
  cannot make two of them collide. (Kafka's MD5 has known collisions.)

Open addressing with linear probing; slots are taken in order of the hash's upper bits.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.kernels import cleaner as kernels
from isotherm.types import UNKNOWN_OFFSET, Offset, TimestampMs

if TYPE_CHECKING:
    import numpy.typing as npt

    from isotherm.record.batch_table import BatchTable, ByteArray, Int64Array
    from isotherm.record.filter import PlaceTable

    HashTable: TypeAlias = npt.NDArray[np.uint64]

SLOT_SIZE = kernels.SLOT.itemsize
# Kafka's map lies in one ByteBuffer, which has at most this many bytes.
MEMORY_SIZE_MAX = 2**31 - 1

assert SLOT_SIZE == 24


# Of a map that is not full there are this many slots to a key, if keys never repeat.
SLOTS_PER_RECORD = 2


class OffsetMap:
    """Memory is let go with the map. For one thread."""

    def __init__(
        self, memory_size: int, load_factor: float, rng: random.Random, *, records_max: int
    ) -> None:
        """At most `load_factor` of the slots in `memory_size` bytes are used.

        There will not be more than `records_max` records, so a smaller map may do.
        """
        self._slot_count_max = min(memory_size, MEMORY_SIZE_MAX) // SLOT_SIZE
        self.entry_count_max = min(int(self._slot_count_max * load_factor), self._slot_count_max)
        assert self.entry_count_max > 0, "not even one key fits"
        slot_count = min(self._slot_count_max, max(SLOTS_PER_RECORD * records_max, 1))
        self.entry_count = 0
        self.latest_offset: Offset = UNKNOWN_OFFSET
        """The map knows all keyed records from the first dirty offset up to here, inclusive."""
        self._slots = np.zeros(slot_count, dtype=kernels.SLOT)
        self._hash_key = np.frombuffer(rng.randbytes(16), dtype=np.uint64).copy()

    @property
    def utilization(self) -> float:
        """Share of the slots that are taken, of all that there is memory for."""
        return self.entry_count / self._slot_count_max

    def hash_keys(
        self, data: ByteArray, unpacked: ByteArray, batches: BatchTable, places: PlaceTable
    ) -> HashTable:
        hashes = np.empty(2 * len(places), dtype=np.uint64)
        kernels.hash_keys(data, unpacked, batches, places, self._hash_key, hashes)
        return hashes

    def put(self, places: PlaceTable, hashes: HashTable, start_offset: Offset) -> int:
        """Take in the keyed records at or above `start_offset`, which rise.

        Returns the index of the first one that there was no room for, or -1. `latest_offset` is
        the caller's to move.
        """
        self.entry_count, rejected = kernels.put_offsets(
            self._slots, places, hashes, start_offset, self.entry_count, self.entry_count_max
        )
        return int(rejected)

    def choose_records(
        self,
        batches: BatchTable,
        places: PlaceTable,
        hashes: HashTable,
        *,
        now_ms: TimestampMs,
        expiry_ms: Int64Array,
    ) -> int:
        """Set `is_kept` of each record; the number of those dropped for having no key.

        A record stays above `latest_offset`, and where no newer offset of its key is known, unless
        it is a tombstone and `expiry_ms` of its batch has come.
        """
        return int(
            kernels.choose_records(
                self._slots, batches, places, hashes, self.latest_offset, now_ms, expiry_ms
            )
        )
