"""`isotherm serve` as a process: signals, and the exit status.

SIGTERM, SIGINT    stop in order; a second one ends the process at once, by the signal
SIGHUP             read the configuration again (see isotherm.config.reload)
a failed broker    stops in order with status 1: nothing is left that it could serve
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

import uvloop

from isotherm.broker.node import BrokerNode
from isotherm.config.broker import BrokerConfig

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: BrokerConfig) -> int:
    """Serve until a stop signal or a failure; the status to exit with."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


def exit_at_once(status: int) -> None:
    """End the process without waiting for threads: a copy to a slow store may take minutes.

    What has to be kept has been written when `run` returns.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _serve(config: BrokerConfig) -> int:
    stopping = asyncio.Event()
    _stop_on_signal(stopping.set)
    node = BrokerNode(config)
    await node.start()
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((stop, node.failed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        await node.stop()
    return 1 if node.failed.done() else 0


def _stop_on_signal(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def begin() -> None:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            # The next one is not asked of the event loop, which may be busy writing.
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, begin)
