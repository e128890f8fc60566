"""A minimal producer: it sends one prebuilt batch over and over, and reads what it is answered.

A client that makes batches of records needs more time for that than a broker for storing them, and
so measures itself. This client builds its batch once. Each of its connections has
REQUESTS_IN_FLIGHT requests under way, as the Java producer and an idempotent librdkafka have at
most.

`run` starts one or several clients, each in its own process; they begin at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import struct
import sys
import time

from bench.load import begin_at_once
from bench.logins import connect
from isotherm.record.batch import NewRecord, build_batch

CLIENT_ID = b"produce-client"
PRODUCE_KEY, PRODUCE_VERSION = 0, 7
ACKS_ALL = -1
TIMEOUT_MS = 30_000
# max.in.flight.requests.per.connection
REQUESTS_IN_FLIGHT = 5
RECORD_SIZE = 1024

_SIZE = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhih")
# Acks, timeout and one topic, behind a transactional id of none.
_PRODUCE = struct.Struct(">hhii")
_PARTITION = struct.Struct(">iii")
_PARTITION_ANSWER = struct.Struct(">ihq")


def batch_of(size: int) -> bytes:
    """A batch of records of RECORD_SIZE random bytes, of at most `size` bytes, or of one record."""
    now_ms = int(time.time() * 1000)
    count = max(1, size // (RECORD_SIZE + 16))
    records = [NewRecord(now_ms, None, os.urandom(RECORD_SIZE), ()) for _ in range(count)]
    return bytes(build_batch(records))


class ProduceClient:
    """Sends batches to one partition, over one connection."""

    def __init__(self, connection: socket.socket, topic: str, partition: int, batch: bytes) -> None:
        self._socket = connection
        name = topic.encode()
        body = (
            _REQUEST_HEADER.pack(PRODUCE_KEY, PRODUCE_VERSION, 0, len(CLIENT_ID))
            + CLIENT_ID
            + _PRODUCE.pack(-1, ACKS_ALL, TIMEOUT_MS, 1)
            + struct.pack(">h", len(name))
            + name
            + _PARTITION.pack(1, partition, len(batch))
            + batch
        )
        self._request = _SIZE.pack(len(body)) + body
        # Of the answer: correlation id, counts and the topic's name.
        self._result_position = 4 + 4 + 2 + len(name) + 4

    def produce(self, batch_count: int) -> None:
        """Send batches, and return when all are acknowledged."""
        sent = acknowledged = 0
        while acknowledged < batch_count:
            while sent < batch_count and sent - acknowledged < REQUESTS_IN_FLIGHT:
                self._socket.sendall(self._request)
                sent += 1
            self._acknowledge()
            acknowledged += 1

    def close(self) -> None:
        self._socket.close()

    def _acknowledge(self) -> None:
        (size,) = _SIZE.unpack(self._take(_SIZE.size))
        answer = self._take(size)
        _, error, _ = _PARTITION_ANSWER.unpack_from(answer, self._result_position)
        if error:
            raise RuntimeError(f"the batch was refused: error_code={error}")

    def _take(self, size: int) -> bytes:
        taken = bytearray()
        while len(taken) < size:
            received = self._socket.recv(size - len(taken))
            if not received:
                raise RuntimeError("the broker hung up")
            taken += received
        return bytes(taken)


def run(
    address: str, topic: str, *, batch_count: int, batch_size: int, connections: int
) -> dict[str, float]:
    """Let `connections` processes each send `batch_count` batches to one of as many partitions.

    Rates are totals, from the first request to the last answer.
    """
    command = ["bench.produce_client", address, topic, str(batch_count), str(batch_size)]
    command.append(str(connections))
    runs = begin_at_once(command, connections)
    seconds = max(run["ended_s"] for run in runs) - min(run["began_s"] for run in runs)
    return {
        "records_per_s": sum(run["records"] for run in runs) / seconds,
        "mb_per_s": sum(run["records"] for run in runs) * RECORD_SIZE / seconds / 1e6,
        "client_cpu_s": sum(run["client_cpu_s"] for run in runs),
    }


def _send(
    address: str, topic: str, batch_count: int, batch_size: int, partitions: int
) -> dict[str, float]:
    batch = batch_of(batch_size)
    # Any partition does: two clients may share one.
    partition = os.getpid() % partitions
    client = ProduceClient(connect(address, {}), topic, partition, batch)
    client.produce(1)
    print("connected", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    client.produce(batch_count)
    ended = time.monotonic()
    client.close()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    (record_count,) = struct.unpack_from(">i", batch, 57)
    return {
        "records": float(batch_count * record_count),
        "began_s": began,
        "ended_s": ended,
        "client_cpu_s": usage.ru_utime + usage.ru_stime,
    }


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.produce_client")
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("batch_count", type=int)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("partitions", type=int)
    print(json.dumps(_send(**vars(parser.parse_args()))))


if __name__ == "__main__":
    _main()
