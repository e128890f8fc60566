"""RangeMemory: a block returns when its last view is dropped, and is lent again."""

from __future__ import annotations

from isotherm.remote.reading.range_memory import RangeMemory

SIZE = 1 << 16


def test_block_serves_again_once_its_last_view_is_gone() -> None:
    memory = RangeMemory(4 * SIZE)
    view = memory.lend(SIZE)
    view[:4] = b"mark"
    answer = view[2:100].toreadonly()
    del view
    assert (memory.lent_size, memory.kept_size) == (SIZE, 0)
    assert bytes(answer[:2]) == b"rk"
    del answer
    assert (memory.lent_size, memory.kept_size) == (0, SIZE)
    assert bytes(memory.lend(SIZE)[:4]) == b"mark"
    assert memory.kept_size == SIZE


def test_block_that_is_still_looked_at_is_not_lent_again() -> None:
    memory = RangeMemory(4 * SIZE)
    first, second = memory.lend(SIZE), memory.lend(SIZE)
    first[:1], second[:1] = b"1", b"2"
    assert (bytes(first[:1]), bytes(second[:1])) == (b"1", b"2")


def test_block_serves_ranges_of_nearly_its_size() -> None:
    memory = RangeMemory(4 * SIZE)
    views = [memory.lend(SIZE)]
    views.clear()
    views.append(memory.lend(SIZE - 1000))
    assert (len(views[0]), memory.kept_size) == (SIZE - 1000, 0)


def test_no_more_is_kept_than_the_bound_leaves() -> None:
    memory = RangeMemory(2 * SIZE)
    views = [memory.lend(SIZE) for _ in range(5)]
    assert memory.lent_size == memory.size_in_bytes == 5 * SIZE
    views.clear()
    assert (memory.lent_size, memory.kept_size) == (0, 2 * SIZE)
    assert memory.size_in_bytes == 2 * SIZE
    large = memory.lend(2 * SIZE)
    assert (len(large), memory.kept_size) == (2 * SIZE, 0)


def test_memory_that_was_never_written_to_counts_for_nothing() -> None:
    """Ranges of 50 MiB lie in blocks of 64 MiB. Five of them fit a bound of 256 MiB."""
    size = SIZE * 50 // 64
    memory = RangeMemory(4 * SIZE)
    views = [memory.lend(size) for _ in range(5)]
    assert memory.lent_size == 5 * size
    views[0][:4] = b"mark"
    del views[0]
    assert (memory.lent_size, memory.kept_size) == (4 * size, size)
    assert bytes(memory.lend(size)[:4]) == b"mark"
    # A longer range writes to more of the same block, and that memory counts from then on.
    longer = memory.lend(SIZE)
    assert (memory.lent_size, memory.kept_size) == (4 * size + SIZE, 0)
    del longer, views
    assert memory.lent_size == 0
    assert memory.kept_size == 4 * size  # the block that returned first was dropped


def test_small_ranges_share_blocks_of_a_page() -> None:
    memory = RangeMemory(4 * SIZE)
    for size, other in ((1, 4096), (4096, 3), (4097, 8192), (8192, 4097)):
        view = memory.lend(size)
        assert len(view) == size
        view[:1] = b"m"
        del view
        assert bytes(memory.lend(other)[:1]) == b"m", (size, other)


def test_range_of_another_size_gets_another_block() -> None:
    memory = RangeMemory(4 * SIZE)
    memory.lend(SIZE)
    assert memory.kept_size == SIZE
    views = [memory.lend(SIZE + 1), memory.lend(SIZE // 2)]
    assert (memory.kept_size, memory.lent_size) == (SIZE, sum(map(len, views)))


def test_nothing_is_kept_without_a_bound_to_keep_it_in() -> None:
    memory = RangeMemory(0)
    view = memory.lend(SIZE)
    assert memory.lent_size == SIZE
    del view
    assert (memory.lent_size, memory.kept_size) == (0, 0)


def test_oldest_block_is_dropped_first() -> None:
    memory = RangeMemory(7 * SIZE)
    views = {size: memory.lend(size * SIZE) for size in (1, 2, 4)}
    for size in (2, 1, 4):
        del views[size]
    assert memory.kept_size == 7 * SIZE
    # The block of two is used again, so it is the newest by now.
    memory.lend(2 * SIZE)
    views[0] = memory.lend(SIZE // 2)
    assert memory.kept_size == 6 * SIZE, "that of one is gone"
    views[3] = memory.lend(SIZE // 2)
    assert memory.kept_size == 6 * SIZE
    views[5] = memory.lend(SIZE // 4)
    assert memory.kept_size == 2 * SIZE, "that of four is gone"
