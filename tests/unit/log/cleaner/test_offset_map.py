"""The offset map: its hash, its bounds, and which records it keeps. The oracle is a dict."""

from __future__ import annotations

import random

import numpy as np
import pytest

from isotherm.kernels import cleaner, tables
from isotherm.log.cleaner.offset_map import OffsetMap
from isotherm.record.batch import build_batch
from isotherm.record.batch_table import byte_array, read_batch_table
from isotherm.record.filter import locate_records

# SipHash-2-4 with 128 bits and key 00 01 .. 0f, of the messages 00 01 .. by their size. Made with
# `openssl mac -macopt hexkey:000102030405060708090a0b0c0d0e0f -macopt size:16 SIPHASH`.
SIPHASH = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    9: "264499060ad9baabc47f8b02bb6d71ed",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    63: "5150d1772f50834a503e069a973fbd7c",
}


def placed(*records: tuple[str | None, str | None], base_offset: int = 0) -> tuple:
    """The bytes, table and record places of one batch."""
    batch = build_batch(
        [(0, encoded(key), encoded(value), ()) for key, value in records],
        base_offset=base_offset,
    )
    batches, _ = read_batch_table(batch)
    return byte_array(batch), batches, locate_records(batch, byte_array(b""), batches)


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def new_map(
    slots: int, load_factor: float = 1.0, *, first_offset: int = 0, offsets: int = 10**6
) -> OffsetMap:
    return OffsetMap(
        *(24 * slots + 23, load_factor, random.Random(1)),
        first_offset=first_offset,
        end_offset=first_offset + offsets,
    )


def put(offset_map: OffsetMap, *keys: str | None, base_offset: int = 0) -> int:
    data, batches, places = placed(*((key, "v") for key in keys), base_offset=base_offset)
    hashes = offset_map.hash_keys(data, byte_array(b""), batches, places)
    return offset_map.put(places, hashes)


def chosen(
    offset_map: OffsetMap,
    *records: tuple[str | None, str | None],
    latest: int,
    expiry_ms: int = 2**62,
    base_offset: int = 0,
) -> tuple[list[int], int]:
    """The offsets kept at time 100 ms, and the number of records without a key."""
    data, batches, places = placed(*records, base_offset=base_offset)
    offset_map.latest_offset = latest
    hashes = offset_map.hash_keys(data, byte_array(b""), batches, places)
    expiry = np.array([expiry_ms])
    invalid = offset_map.choose_records(batches, places, hashes, now_ms=100, expiry_ms=expiry)
    kept = places[places["is_kept"] != 0]
    return kept["offset"].tolist(), invalid


@pytest.mark.parametrize("size", SIPHASH)
def test_hash_is_siphash(size: int) -> None:
    message = bytes(range(size))
    places = np.zeros(1, dtype=tables.PLACE)
    places["key_size"] = size
    hashes = np.empty(2, dtype=np.uint64)
    cleaner.hash_keys(
        *(byte_array(message), byte_array(b""), np.zeros(1, dtype=tables.BATCH), places),
        *(np.frombuffer(bytes(range(16)), dtype=np.uint64).copy(), hashes),
    )
    assert hashes.tobytes().hex() == SIPHASH[size]


def test_slots_are_of_24_bytes_and_the_load_factor_holds() -> None:
    assert new_map(100, 0.9).entry_count_max == 90
    assert new_map(3, 0.75).entry_count_max == 2
    assert new_map(10, 7.0).entry_count_max == 10


def test_newest_offset_of_each_key_counts() -> None:
    offset_map = new_map(100)
    assert put(offset_map, "a", "b", "a", None, "") == -1
    assert offset_map.entry_count == 3
    assert offset_map.utilization == 0.03
    records = [("a", "1"), ("b", "1"), ("a", "2"), (None, "1"), ("", "1"), ("c", "1")]
    assert chosen(offset_map, *records, latest=5) == ([1, 2, 4, 5], 1)


def test_records_below_the_start_are_not_taken_in() -> None:
    offset_map = new_map(100, first_offset=8)
    put(offset_map, "a", "b", "c", base_offset=7)
    assert offset_map.entry_count == 2


def test_full_map_takes_not_even_a_key_that_it_knows() -> None:
    offset_map = new_map(100, 0.02)
    assert put(offset_map, "a", "b", "a", "c") == 2
    assert put(offset_map, None, "a", base_offset=9) == 1


def test_map_works_with_every_slot_taken() -> None:
    keys = [f"{number}" for number in range(50)]
    offset_map = new_map(50)
    assert put(offset_map, *keys) == -1
    records = [(key, "old") for key in keys] + [("unknown", "1")]
    assert chosen(offset_map, *records, latest=99) == ([*range(50), 50], 0)
    kept, _ = chosen(new_map(50), *records, latest=99)
    assert kept == [*range(51)]


def test_records_above_the_latest_offset_stay_whatever_they_are() -> None:
    offset_map = new_map(100)
    put(offset_map, "a", "a")
    assert chosen(offset_map, ("a", "1"), (None, "1"), ("a", None), latest=-1, expiry_ms=0) == (
        [0, 1, 2],
        0,
    )


def test_tombstone_goes_from_its_expiry_on() -> None:
    offset_map = new_map(100)
    put(offset_map, "a")
    for expiry_ms, kept in ((101, [0]), (100, []), (99, [])):
        assert chosen(offset_map, ("a", None), latest=0, expiry_ms=expiry_ms) == (kept, 0)
    assert chosen(offset_map, ("a", "1"), latest=0, expiry_ms=0) == ([0], 0)


def test_random_keys_are_found_as_a_dict_finds_them() -> None:
    rng = random.Random(5)
    offset_map, model, offset = new_map(3000, 0.9), {}, 0
    for _ in range(40):
        keys = [rng.randbytes(rng.choice([0, 1, 3, 8, 20])).hex() for _ in range(60)]
        assert put(offset_map, *keys, base_offset=offset) == -1
        model |= {key: offset + index for index, key in enumerate(keys)}
        offset += len(keys)
    assert offset_map.entry_count == len(model)
    for key, newest in model.items():
        for base_offset, kept in ((newest, [newest]), (newest - 1, [])):
            if base_offset >= 0:
                found = chosen(offset_map, (key, "v"), latest=offset, base_offset=base_offset)
                assert found == (kept, 0)


def test_memory_is_no_more_than_the_records_need() -> None:
    assert new_map(10**6, offsets=10)._slots.nbytes == 2 * 10 * 24
    assert new_map(1000, offsets=10**9)._slots.nbytes == 24_000


def test_map_of_no_records_is_searched_and_takes_one() -> None:
    offset_map = new_map(10, offsets=0)
    assert chosen(offset_map, ("a", "1"), latest=9) == ([0], 0)
    assert put(offset_map, "a") == -1


def test_memory_is_bounded_as_in_kafka() -> None:
    """Kafka's map is a ByteBuffer, of at most 2^31 - 1 bytes."""
    offset_map = OffsetMap(2**40, 1.0, random.Random(1), first_offset=0, end_offset=1)
    assert offset_map.entry_count_max == (2**31 - 1) // 24


class Section:
    """Random batches of few keys, some records without key or value, and what a dict says of them:
    the oracle of the bits."""

    def __init__(self, seed: int, offset_map: OffsetMap) -> None:
        rng = random.Random(seed)
        self.records: dict[int, tuple[str | None, str | None]] = {}
        self.batches: list[tuple[int, int]] = []
        offset = offset_map.first_offset
        for _ in range(200):
            offset += rng.choice([0, 0, 1, 70])
            keys = rng.choice(["ab", "abcdefghijkl", "mnopqrstuvwxyz"])
            records = [
                (None if rng.random() < 0.02 else rng.choice(keys) + str(rng.randrange(9)), "v")
                for _ in range(rng.choice([1, 2, 5, 80]))
            ]
            records = [(key, None if rng.random() < 0.02 else value) for key, value in records]
            data, batches, places = placed(*records, base_offset=offset)
            hashes = offset_map.hash_keys(data, byte_array(b""), batches, places)
            assert offset_map.put(places, hashes) == -1
            self.batches.append((offset, len(records)))
            self.records |= {offset + index: record for index, record in enumerate(records)}
            offset += len(records)
        offset_map.latest_offset = offset - 1
        last = {key: offset for offset, (key, _) in self.records.items() if key is not None}
        self.newest = set(last.values())
        self.special = {offset for offset, record in self.records.items() if None in record}

    def placed(self, batch: tuple[int, int]) -> tuple:
        base_offset, count = batch
        records = [self.records[base_offset + index] for index in range(count)]
        return placed(*records, base_offset=base_offset)


@pytest.mark.parametrize("seed", range(3))
def test_bits_choose_the_newest_records_and_tell_batches_that_lose_all_or_none(seed: int) -> None:
    offset_map = new_map(3000, first_offset=1000 + seed, offsets=20_000)
    section = Section(seed, offset_map)
    fates_seen = set()
    for batch in section.batches:
        _, batches, places = section.placed(batch)
        offsets = set(range(batch[0], sum(batch)))
        newest = offsets & section.newest
        assert offset_map.has_bits_for(batches)
        keyless = offset_map.choose_newest(batches, places, now_ms=0, expiry_ms=np.array([1]))
        assert set(places["offset"][places["is_kept"] != 0].tolist()) == newest
        assert keyless == sum(section.records[offset][0] is None for offset in offsets)
        expected = cleaner.KEEPS_ALL if newest == offsets else cleaner.UNDECIDED
        expected = expected if newest else cleaner.KEEPS_NONE
        expected = cleaner.UNDECIDED if offsets & section.special else expected
        assert offset_map.decide_batches(batches).tolist() == [expected]
        fates_seen.add(expected)
        # A record with the same offset as the end of the section is not known.
        offset_map.latest_offset, latest = batch[0] - 1, offset_map.latest_offset
        assert offset_map.decide_batches(batches).tolist() == [cleaner.UNDECIDED]
        offset_map.latest_offset = latest
    assert fates_seen == {cleaner.KEEPS_ALL, cleaner.KEEPS_NONE, cleaner.UNDECIDED}


def test_tombstone_that_the_bits_keep_goes_from_its_expiry_on() -> None:
    offset_map = new_map(100, offsets=1000)
    _, batches, places = placed(("a", "1"), ("a", None))
    hashes = np.zeros(4, dtype=np.uint64)
    offset_map.put(places, hashes)
    offset_map.latest_offset = 1
    for expiry_ms, kept in ((101, [0, 1]), (100, [0, 0])):
        offset_map.choose_newest(batches, places, now_ms=100, expiry_ms=np.array([expiry_ms]))
        assert places["is_kept"].tolist() == kept


@pytest.mark.parametrize("flag", [0x10, 0x20, 0x40], ids=["transactional", "control", "horizon"])
def test_bits_decide_no_batch_of_which_more_must_be_known(flag: int) -> None:
    offset_map = new_map(100, offsets=1000)
    put(offset_map, "a", "b")
    offset_map.latest_offset = 1
    _, batches, _ = placed(("a", "1"), ("b", "1"))
    assert offset_map.decide_batches(batches).tolist() == [cleaner.KEEPS_ALL]
    batches["attributes"] |= flag
    assert offset_map.decide_batches(batches).tolist() == [cleaner.UNDECIDED]
    assert offset_map.has_bits_for(batches) == (flag == 0x40)


def test_there_are_no_bits_below_the_section_nor_beyond_their_share_of_memory() -> None:
    _, batches, _ = placed(("a", "1"), base_offset=7)
    assert new_map(100, first_offset=7).has_bits_for(batches) is False, "a million offsets"
    assert new_map(100, first_offset=7, offsets=1000).has_bits_for(batches)
    assert new_map(100, first_offset=8, offsets=1000).has_bits_for(batches) is False


@pytest.mark.parametrize("offsets", [(5, 5), (6, 5), (5, 64)], ids=["twice", "falling", "beyond"])
def test_offsets_that_bits_cannot_stand_for_leave_the_choice_to_the_keys(
    offsets: tuple[int, int],
) -> None:
    offset_map = new_map(100, offsets=60)
    data, batches, places = placed(("a", "1"), ("b", "1"))
    places["offset"] = offsets
    hashes = offset_map.hash_keys(data, byte_array(b""), batches, places)
    assert offset_map.put(places, hashes) == -1
    offset_map.latest_offset = max(offsets)
    assert not offset_map.has_bits_for(batches)
    assert offset_map.decide_batches(batches).tolist() == [cleaner.UNDECIDED]
    offset_map.choose_records(batches, places, hashes, now_ms=0, expiry_ms=np.array([1]))
    assert places["is_kept"].tolist() == [1, 1]
