"""`isotherm serve` as a process: signals and exit status.

SIGTERM, SIGINT    orderly stop, also during the start; a second signal kills the process at once
SIGHUP             reload the configuration (see isotherm.config.reload), during the start as soon
                   as it ends
a failed broker    orderly stop with status 1
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import uvloop

from isotherm.broker.garbage import ShortCollections
from isotherm.broker.node import BrokerNode
from isotherm.broker.threads.scheduling import shorten_slices
from isotherm.config.broker import BrokerConfig
from isotherm.errors import ConfigError, IsothermError

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# How long a computing thread keeps the GIL while the event loop waits for it. With Python's default
# of 5 ms, producers wait that long, and the loop may lose the GIL again at each file write.
SWITCH_INTERVAL_S = 0.0005


def run(
    read_config: Callable[[], BrokerConfig],
    make_node: Callable[[BrokerConfig], BrokerNode] = BrokerNode,
) -> int:
    """Serve until a stop signal or a failure, and return the exit status.

    `read_config` is called at the start and at every SIGHUP, `make_node` once. Raises ConfigError.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    shorten_slices()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(read_config, make_node))


def exit_at_once(status: int) -> None:
    """End the process without waiting for threads: a copy to a slow store may take minutes.

    Everything that must be kept is on disk when `run` returns.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _serve(
    read_config: Callable[[], BrokerConfig], make_node: Callable[[BrokerConfig], BrokerNode]
) -> int:
    stopping = asyncio.Event()
    _stop_on_signal(stopping.set)
    node = make_node(read_config())
    started = asyncio.Event()
    _reload_on_signal(node, read_config, started)
    stop = asyncio.ensure_future(stopping.wait())
    if not await _start(node, stop):
        return 0
    collections = ShortCollections(asyncio.get_running_loop())
    collections.start()
    started.set()
    try:
        await asyncio.wait((stop, node.failed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        collections.stop()
        await node.stop()
    return 1 if node.failed.done() else 0


async def _start(node: BrokerNode, stop: asyncio.Future[Any]) -> bool:
    """Whether the broker has started.

    A stop signal does not wait for controllers that cannot be reached.
    """
    starting = asyncio.ensure_future(node.start())
    await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        node.give_up_start()
    try:
        await starting
    except IsothermError as error:
        if not stop.done():
            raise
        logger.info("start is aborted reason='%s'", error)
        return False
    return True


def _stop_on_signal(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def begin() -> None:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            # The default handler ends the process even if a write blocks the event loop.
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, begin)


def _reload_on_signal(
    node: BrokerNode, read_config: Callable[[], BrokerConfig], started: asyncio.Event
) -> None:
    """Without a handler the signal would end the process, so it is set before the start."""
    loop = asyncio.get_running_loop()
    # The event loop keeps only weak references to tasks.
    reloads: set[asyncio.Task[None]] = set()

    # One at a time: of two readings the later one must be applied last.
    reloading = asyncio.Lock()

    async def reload() -> None:
        await started.wait()
        async with reloading:
            try:
                await node.reload(await loop.run_in_executor(None, read_config))
            except ConfigError:
                logger.exception("configuration is unchanged")

    def begin() -> None:
        task = loop.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, begin)
