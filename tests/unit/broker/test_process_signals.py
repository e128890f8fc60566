"""What the process of a broker does with SIGHUP."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from typing import Any, cast

from isotherm.broker import process
from tests.support.conditions import until


class Node:
    """Applies a configuration when the test lets it."""

    def __init__(self) -> None:
        self.applied: list[Any] = []
        self.may_apply = asyncio.Semaphore(0)

    async def reload(self, config: Any) -> None:
        await self.may_apply.acquire()
        self.applied.append(config)


def test_signal_during_the_start_is_obeyed_after_it_and_signals_in_their_order() -> None:
    readings = itertools.count()

    async def main() -> None:
        node, started = Node(), asyncio.Event()
        process._reload_on_signal(cast("Any", node), lambda: cast("Any", next(readings)), started)
        tasks = asyncio.all_tasks()
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda count=count: len(asyncio.all_tasks() - tasks) == count)
        node.may_apply.release()
        node.may_apply.release()
        assert node.applied == []
        started.set()
        await until(lambda: len(node.applied) == 2)
        assert node.applied == [0, 1]

    try:
        asyncio.run(asyncio.wait_for(main(), 300))
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
