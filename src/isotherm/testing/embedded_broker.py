"""Runs a broker inside the test's process, on a free port, with its own folder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

import uvloop

from isotherm.broker.node import BrokerNode
from isotherm.broker.surroundings import Surroundings
from isotherm.config.layers import embedded_defaults
from isotherm.config.server_properties import parse_broker_config
from isotherm.log.fs import FileSystem, OsFileSystem

# Settings for a quick start and quick copies. All others are those of `isotherm serve`.
TEST_SETTINGS: Mapping[str, str] = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
    "rlmm.config.remote.log.rewrite.check.interval.ms": "100",
    "remote.log.manager.task.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "100",
}

# Settings of a topic whose closed segments are soon in the remote tier only, and stay there.
TIERED_TOPIC: dict[str, str] = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "segment.bytes": "1048576",
    "retention.ms": "-1",
    "file.delete.delay.ms": "100",
}


class EmbeddedBroker:
    """A broker that `start` or `with` starts, and that is stopped in order at the end. Another
    broker can then open its folder.

    The broker runs in a thread with its own event loop. `node` gives access to its parts, which
    belong to that thread unless they say otherwise. `start` and `stop` are called by one thread at
    a time, clients may be in any.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        fs: FileSystem | None = None,
        without: tuple[str, ...] = (),
    ) -> None:
        """`directory` gets the folders `log` and `bucket`. `settings` are keys of server.properties
        and override TEST_SETTINGS, of which keys that begin with one of `without` are left out.
        Raises ConfigError for unknown keys and wrong values."""
        presets = {**embedded_defaults(directory, settings or {}), **TEST_SETTINGS}
        kept = {key: value for key, value in presets.items() if not key.startswith(without)}
        texts = {**kept, **(settings or {})}
        self.directory = directory
        self.config = parse_broker_config(texts)
        self.fs = fs
        self.node: BrokerNode
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the first listener, for `bootstrap.servers` of any Kafka client. Only
        after `start`."""
        _, host, port = self.node.endpoints[0]
        return f"{host}:{port}"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The broker's event loop, which runs in another thread."""
        return self._loop

    def start(self) -> Self:
        """Start, and return when clients can connect. Raises as `BrokerNode.start`: ConfigError for
        settings that cannot be served, LogDirFailedError for a folder that cannot be used. The
        broker is then stopped."""
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="isotherm-embedded-broker", daemon=True
        )
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._thread.join()
            self._thread = None
            raise
        return self

    def stop(self) -> None:
        """Stop the broker in order: answer requests, write checkpoints, unlock the folder. Blocks
        until that is done. Idempotent."""
        if self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = None

    def wait_failed(self, timeout_s: float) -> None:
        """Wait until the broker has failed. It must still be stopped. Raises TimeoutError after the
        timeout."""
        failed: Future[None] = Future()
        self._loop.call_soon_threadsafe(
            self.node.failed.add_done_callback, lambda _: failed.set_result(None)
        )
        failed.result(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self, started: Future[None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(started))

    def _make_node(self) -> BrokerNode:
        return BrokerNode(self.config, Surroundings(fs=self.fs or OsFileSystem()))

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.node = self._make_node()
        try:
            await self.node.start()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that starts it
            started.set_exception(error)
            return
        started.set_result(None)
        await self._stopping.wait()
        await self.node.stop()
