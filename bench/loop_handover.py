"""What does it cost to hand a request from one event loop to another, and its answer back?

Run: python -m bench.loop_handover [--quick]

Two threads of this process have a uvloop each. One hands items to the other by
`call_soon_threadsafe`, which hands each back; so many are under way at once. Printed are
microseconds of the process's CPU and of the clock for each item, there and back (median of five
rounds). docs/decisions/0301 says what the figures are for.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time

import uvloop

ROUNDS = 5
ITEMS = 40_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the items, one round")
    options = parser.parse_args()
    items, rounds = (ITEMS // 10, 1) if options.quick else (ITEMS, ROUNDS)
    other = uvloop.new_event_loop()
    thread = threading.Thread(target=other.run_forever, daemon=True)
    thread.start()
    for under_way in (1, 10, 100):
        figures = [
            uvloop.run(_hand_over(other, items=items, under_way=under_way)) for _ in range(rounds)
        ]
        cpu_us, clock_us = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"{under_way:4} under way: {cpu_us:6.1f} us of CPU, {clock_us:6.1f} us of the clock")
    other.call_soon_threadsafe(other.stop)
    thread.join()
    other.close()


async def _hand_over(
    other: asyncio.AbstractEventLoop, *, items: int, under_way: int
) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    left, unsent = items, items - under_way

    def back() -> None:
        nonlocal left, unsent
        left -= 1
        if unsent:
            unsent -= 1
            other.call_soon_threadsafe(there)
        elif not left:
            done.set_result(None)

    def there() -> None:
        loop.call_soon_threadsafe(back)

    cpu_s, clock_s = time.process_time(), time.perf_counter()
    for _ in range(under_way):
        other.call_soon_threadsafe(there)
    await done
    cpu_us = (time.process_time() - cpu_s) / items * 1e6
    return cpu_us, (time.perf_counter() - clock_s) / items * 1e6


if __name__ == "__main__":
    main()
