"""A thread pool with a bounded queue refuses work beyond its bound."""

from __future__ import annotations

import threading

import pytest

from isotherm.errors import NotEnoughMemoryError
from isotherm.remote.bounded_pool import BoundedPool


def test_work_beyond_threads_and_queue_is_refused_until_some_ends() -> None:
    pool, go = BoundedPool("test", 1, 1), threading.Event()
    try:
        running = pool.submit(go.wait)
        waiting = pool.submit(lambda: 7)
        with pytest.raises(NotEnoughMemoryError, match="pool=test"):
            pool.submit(lambda: 8)
        go.set()
        assert running.result(300)
        assert waiting.result(300) == 7
        pool.close()
    finally:
        go.set()


def test_cancelled_work_makes_room() -> None:
    pool, go = BoundedPool("test", 1, 1), threading.Event()
    try:
        pool.submit(go.wait)
        waiting = pool.submit(lambda: 7)
        assert waiting.cancel()
        again = pool.submit(lambda: 8)
        go.set()
        assert again.result(300) == 8
    finally:
        go.set()
        pool.close()


def test_failed_work_makes_room_and_gives_its_error() -> None:
    pool = BoundedPool("test", 1, 0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result(300)
    pool.close()


def test_resized_pool_runs_more_at_once_and_what_it_had_taken() -> None:
    pool, go = BoundedPool("test", 1, 2), threading.Event()
    try:
        running = pool.submit(go.wait)
        queued = pool.submit(lambda: 7)
        pool.resize(2)
        assert pool.submit(lambda: 8).result(300) == 8
        assert not queued.done()
        go.set()
        assert (running.result(300), queued.result(300)) == (True, 7)
    finally:
        go.set()
        pool.close()


def test_work_that_waits_is_counted_and_cancelled_at_the_close() -> None:
    pool, go, ran = BoundedPool("test", 2, 3), threading.Event(), list[int]()
    started = threading.Semaphore(0)

    def hold() -> bool:
        started.release()
        return go.wait(300)

    try:
        assert (pool.pending_count, pool.idle_share) == (0, 1)
        running = [pool.submit(hold)]
        assert (pool.pending_count, pool.idle_share) == (0, 0.5)
        running.append(pool.submit(hold))
        assert (pool.pending_count, pool.idle_share) == (0, 0)
        for _ in running:
            assert started.acquire(timeout=300)
        waiting = [pool.submit(lambda: ran.append(1)) for _ in range(3)]
        assert (pool.pending_count, pool.idle_share) == (3, 0)
        with pytest.raises(NotEnoughMemoryError, match="pool=test count=5"):
            pool.submit(lambda: 8)
        closing = threading.Thread(target=pool.close)
        closing.start()
        for each in waiting:
            while not each.cancelled():
                threading.Event().wait(0.001)
        go.set()
        closing.join(300)
        assert [future.result(0) for future in running] == [True, True]
        assert (ran, pool.pending_count, pool.idle_share) == ([], 0, 1)
    finally:
        go.set()


def test_pool_without_a_bound_takes_any_work() -> None:
    pool, go = BoundedPool("test", 1, None), threading.Event()
    try:
        work = [pool.submit(go.wait) for _ in range(50)]
        assert pool.pending_count == 49
        go.set()
        assert all(future.result(300) for future in work)
    finally:
        go.set()
        pool.close()
