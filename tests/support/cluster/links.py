"""One-way splits of a cluster's network, between any two of its processes.

    broker 1 ──► proxy of 2 ──► broker 2        Links.cut(1, 2): the proxies hold what 1 sends to 2,
             ◄──            ◄──                 its requests as well as its answers to those of 2

Brokers learn each other's addresses from the controller, so a process that is connected to has one
proxy for all that connect. The proxy finds out what connects: the owner of the other end of the
connection, by /proc. Bytes that are held are sent when the link is mended, as TCP sends them again
after a split, or the connections are reset. Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

_BLOCK = 65536

NodeId: TypeAlias = int
Link: TypeAlias = tuple[NodeId, NodeId]
"""(sender, receiver)."""

UNKNOWN: NodeId = -1
"""The source of a connection from a process that `set_pid` does not know."""


class Links:
    """Proxies on an event loop in a separate thread, while the `with` block runs. Thread-safe."""

    def __init__(self) -> None:
        self._pids: dict[NodeId, int] = {}
        self._gates: dict[Link, asyncio.Event] = {}
        self._connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def proxy(self, port: int, node_id: NodeId, upstream_port: int) -> None:
        """Pass connections to `port` on to a process's own `upstream_port`."""
        self._call(self._serve(port, node_id, upstream_port))

    def set_pid(self, node_id: NodeId, pid: int) -> None:
        """Set the process id of a node, again after each restart."""
        self._pids = {**self._pids, node_id: pid}

    def cut(self, *links: Link) -> None:
        self._call(self._cut(links))

    def mend(self, *links: Link, reset: bool) -> None:
        """Mend links and send what was held back; with `reset` drop it and close the connections
        instead.
        """
        self._call(self._mend(links, reset=reset))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # ---- on the loop

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in asyncio.all_tasks(self._loop) - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _serve(self, port: int, node_id: NodeId, upstream_port: int) -> None:
        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Tests close connections and end the run at any time: neither is an error.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._pass_on(reader, writer, node_id, upstream_port)

        self._servers.append(await asyncio.start_server(pass_on, "127.0.0.1", port))

    async def _cut(self, links: tuple[Link, ...]) -> None:
        self._identify(self._connections)
        for link in links:
            self._gate(link).clear()

    def _identify(self, connections: Iterable[_Connection]) -> None:
        """Find the nodes of connections with an unknown client, in one pass over /proc.

        Brokers reconnect constantly to one that is away. So a new connection is only identified
        while a link is cut.
        """
        unknown = [connection for connection in connections if connection.client == UNKNOWN]
        if not unknown:
            return
        nodes = _nodes_by_socket(self._pids)
        sockets = _sockets_by_ports()
        for each in unknown:
            each.client = nodes.get(sockets.get(each.ports, ""), UNKNOWN)

    async def _mend(self, links: tuple[Link, ...], *, reset: bool) -> None:
        if reset:
            ends = [{*link} for link in links]
            for connection in self._connections:
                if {connection.client, connection.server} in ends:
                    connection.abort()
        for link in links:
            self._gate(link).set()

    def _gate(self, link: Link) -> asyncio.Event:
        gate = self._gates.get(link)
        if gate is None:
            gate = self._gates[link] = asyncio.Event()
            gate.set()
        return gate

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        node_id: NodeId,
        upstream_port: int,
    ) -> None:
        ports = (writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1])
        connection = _Connection(ports, UNKNOWN, node_id, [writer])
        if not all(gate.is_set() for gate in self._gates.values()):
            self._identify([connection])
        self._connections.add(connection)
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", upstream_port)
            connection.writers.append(to_server)
            pumps = [
                asyncio.ensure_future(
                    self._pump(reader, to_server, lambda: (connection.client, node_id))
                ),
                asyncio.ensure_future(
                    self._pump(from_server, writer, lambda: (node_id, connection.client))
                ),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
        finally:
            self._connections.discard(connection)
            connection.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Callable[[], Link]
    ) -> None:
        with contextlib.suppress(OSError):
            while block := await reader.read(_BLOCK):
                await self._gate(link()).wait()
                writer.write(block)
                await writer.drain()
        # A split holds back the end of a stream too.
        await self._gate(link()).wait()


@dataclass(eq=False, slots=True)
class _Connection:
    """`ports` are the client's and the proxy's."""

    ports: tuple[int, int]
    client: NodeId
    server: NodeId
    writers: list[asyncio.StreamWriter]

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


def _nodes_by_socket(pids: Mapping[NodeId, int]) -> dict[str, NodeId]:
    """Inode of a socket -> the node that has it open."""
    found = {}
    for node_id, pid in pids.items():
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
            for file in files:
                with contextlib.suppress(OSError):
                    target = Path(file.path).readlink().as_posix()
                    if target.startswith("socket:["):
                        found[target[len("socket:[") : -1]] = node_id
    return found


# Local address, remote address, state, ..., inode.
_SOCKET = re.compile(r":([0-9A-F]{4}) \w+:([0-9A-F]{4}) (?:\S+ +){6}(\d+)")


def _sockets_by_ports() -> dict[tuple[int, int], str]:
    """The inodes of this machine's connections by their two ports."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for local, remote, inode in _SOCKET.findall(Path(table).read_text()):
                found[int(local, 16), int(remote, 16)] = inode
    return found
