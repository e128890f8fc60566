"""What are the limits of the machine?

One thread, in 10^6 bytes per second and in this process's CPU-seconds per GB. The best round
counts, since a limit is what can be reached:

    memcpy           64 MiB from one piece of memory to another
    CRC-32C          of 64 MiB, with the broker's library
    loopback, send   a file in the page cache, read and sent over one connection to another process
    loopback, sendfile
                     the same by sendfile
    loopback, receive
                     data from another process, received in pieces of 64 KiB
    page cache, write
                     a file in pieces of 64 KiB, not synced, into memory that is ready for it
    disk, append     a file written piece by piece and synced at the end
    16 KiB, synced   the same with a sync after each piece of 16 KiB: pieces per second times 16 KiB
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import google_crc32c
import numpy as np

from bench import memory
from bench.harness import Question, describe, keep

SIZE = 64 * 1024 * 1024
PIECE = 1024 * 1024
SMALL_PIECE = 16 * 1024
BATCH = 64 * 1024
SENT = 16 * SIZE
SYNCED_PIECES = 500
ROUNDS = 5

QUESTION = Question("limits", "What are the limits of the machine?", lambda scale: ())
SENDER = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
piece = bytes(1 << 16)
for _ in range(int(sys.argv[2]) // len(piece)):
    connection.sendall(piece)
"""
RECEIVER = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
buffer = bytearray(1 << 20)
while connection.recv_into(buffer):
    pass
"""


class Rate(NamedTuple):
    mb_per_s: float
    cpu_s_per_gb: float


def memcpy() -> Rate:
    source, target = np.ones(SIZE, dtype=np.uint8), np.zeros(SIZE, dtype=np.uint8)
    return _rate(lambda: np.copyto(target, source), SIZE)


def crc32c() -> Rate:
    data = bytes(SIZE)
    return _rate(lambda: google_crc32c.value(data), SIZE)


def loopback(*, by_sendfile: bool) -> Rate:
    with tempfile.NamedTemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as server:
        file.write(bytes(SIZE))
        file.flush()
        port = str(server.getsockname()[1])
        receiver = subprocess.Popen([sys.executable, "-c", RECEIVER, port])
        connection, _ = server.accept()
        send = _send_by_sendfile if by_sendfile else _send_by_reads
        with connection:
            send(connection, file.fileno())  # both sides are awake
            rate = _rate(lambda: _repeat(send, connection, file.fileno()), SENT)
        receiver.wait()
    return rate


def loopback_receive() -> Rate:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        sender = subprocess.Popen([sys.executable, "-c", SENDER, port, str(SENT)])
        connection, _ = server.accept()
        buffer = bytearray(BATCH)
        with connection:

            def receive() -> None:
                while connection.recv_into(buffer):
                    pass

            rate = _rate(receive, SENT)
        sender.wait()
    return rate


def _repeat(send: Callable[[socket.socket, int], None], connection: socket.socket, fd: int) -> None:
    for _ in range(SENT // SIZE):
        send(connection, fd)


def _send_by_sendfile(connection: socket.socket, fd: int) -> None:
    position = 0
    while position < SIZE:
        position += os.sendfile(connection.fileno(), fd, position, SIZE - position)


def _send_by_reads(connection: socket.socket, fd: int) -> None:
    buffer = bytearray(PIECE)
    for position in range(0, SIZE, PIECE):
        os.preadv(fd, [buffer], position)
        connection.sendall(buffer)


def page_cache() -> Rate:
    memory.make_ready(SENT)
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        piece = bytes(BATCH)
        return _rate(lambda: [file.write(piece) for _ in range(SENT // BATCH)], SENT)


def disk() -> Rate:
    with tempfile.NamedTemporaryFile() as file:
        piece = bytes(PIECE)

        def write() -> None:
            for _ in range(SENT // PIECE):
                file.write(piece)
            os.fsync(file.fileno())

        return _rate(write, SENT)


def disk_synced() -> Rate:
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        piece = bytes(SMALL_PIECE)

        def write() -> None:
            for _ in range(SYNCED_PIECES):
                file.write(piece)
                os.fdatasync(file.fileno())

        return _rate(write, SYNCED_PIECES * SMALL_PIECE)


def _rate(work: Callable[[], object], size: int) -> Rate:
    began, cpu_before_s = time.perf_counter(), time.process_time()
    work()
    cpu_s = time.process_time() - cpu_before_s
    return Rate(size / (time.perf_counter() - began) / 1e6, cpu_s / size * 1e9)


LIMITS: dict[str, Callable[[], Rate]] = {
    "memcpy": memcpy,
    "CRC-32C": crc32c,
    "loopback, send": lambda: loopback(by_sendfile=False),
    "loopback, sendfile": lambda: loopback(by_sendfile=True),
    "loopback, receive": loopback_receive,
    "page cache, write": page_cache,
    "disk, append": disk,
    "16 KiB, synced": disk_synced,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="one round, not stored")
    options = parser.parse_args()
    rounds = 1 if options.quick else ROUNDS
    document = describe(QUESTION, rounds)
    document["limits"] = {}
    for name, measure in LIMITS.items():
        rates = [measure() for _ in range(rounds)]
        best, least_cpu = max(rates).mb_per_s, min(rate.cpu_s_per_gb for rate in rates)
        document["limits"][name] = {
            "mb_per_s": best,
            "cpu_s_per_gb": least_cpu,
            "values": [round(rate.mb_per_s) for rate in rates],
        }
        print(f"{name:<20} {best:10,.0f} MB/s {least_cpu:6.2f} CPU-s/GB", file=sys.stderr)
    keep(document, is_whole=not options.quick)


if __name__ == "__main__":
    main()
