"""A minimal consumer: it requests records, receives the bytes, and reads batch headers.

A client that turns records into messages needs more time for that than a broker for serving them,
and so measures itself. This client requests the next offset as soon as an answer is there, one
request at a time as the Java consumer and librdkafka do, and reads each answer into the same
memory. It takes the next offset from the batch headers, and checks that batches follow one another
without a gap.

`run` starts one or several clients, each in its own process; they begin at the same time.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import struct
import sys
import time
from collections.abc import Mapping

from bench.load import begin_at_once
from bench.logins import connect

CLIENT_ID = b"fetch-client"
FETCH_KEY, FETCH_VERSION = 1, 4
OFFSET_OUT_OF_RANGE = 1
WAIT_MS = 500
# fetch.max.bytes of the Java consumer.
FETCH_MAX_BYTES = 50 * 1024 * 1024

_SIZE = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhih")
_FETCH = struct.Struct(">iiiibi")
_PARTITION = struct.Struct(">iiqi")
_PARTITION_ANSWER = struct.Struct(">ihqqi")
_BATCH = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_POSITION = 23
_BATCH_HEADER_SIZE = 61
_LOG_OVERHEAD = 12


class OffsetOutOfRange(RuntimeError):
    """The broker no longer has the offset, or not yet: set `next_offset` and fetch again."""


class FetchClient:
    """Reads partition 0 of a topic from its first offset, over one connection."""

    def __init__(self, connection: socket.socket, topic: str, fetch_bytes: int) -> None:
        """`fetch_bytes` is max.partition.fetch.bytes."""
        self._socket = connection
        self._topic = topic.encode()
        self._fetch_bytes = fetch_bytes
        # The first batch is returned even if it is larger than the limit.
        self._buffer = memoryview(bytearray(fetch_bytes + 4 * 1024 * 1024))
        self.next_offset = 0

    def close(self) -> None:
        self._socket.close()

    def fetch(self) -> int:
        """Send one fetch request; returns the bytes of records."""
        self._socket.sendall(self._request())
        answer = self._receive()
        position, error, size = self._records_start(answer)
        if error == OFFSET_OUT_OF_RANGE:
            raise OffsetOutOfRange(f"the offset is out of range: offset={self.next_offset}")
        if error:
            raise RuntimeError(f"the fetch failed: error_code={error} offset={self.next_offset}")
        if size > 0:
            self._follow(answer[position : position + size])
        return max(0, size)

    def _request(self) -> bytes:
        body = (
            _REQUEST_HEADER.pack(FETCH_KEY, FETCH_VERSION, 0, len(CLIENT_ID))
            + CLIENT_ID
            # Replica id -1 (a consumer), min bytes 1, read_uncommitted, one topic.
            + _FETCH.pack(-1, WAIT_MS, 1, FETCH_MAX_BYTES, 0, 1)
            + struct.pack(">h", len(self._topic))
            + self._topic
            + _PARTITION.pack(1, 0, self.next_offset, self._fetch_bytes)
        )
        return _SIZE.pack(len(body)) + body

    def _receive(self) -> memoryview:
        size = _SIZE.unpack(self._take(4))[0]
        if size > len(self._buffer):
            raise RuntimeError(f"the answer is too large: size={size}")
        return self._take(size)

    def _take(self, size: int) -> memoryview:
        filled = 0
        while filled < size:
            received = self._socket.recv_into(self._buffer[filled:size])
            if not received:
                raise RuntimeError("the broker hung up")
            filled += received
        return self._buffer[:size]

    def _records_start(self, answer: memoryview) -> tuple[int, int, int]:
        """The position of the records in the answer, the partition's error code, and the
        records' size.
        """
        position = 4 + 4 + 4 + 2 + len(self._topic) + 4  # ids, throttle time, counts, name
        _, error, _, _, aborted_count = _PARTITION_ANSWER.unpack_from(answer, position)
        position += _PARTITION_ANSWER.size + 16 * max(0, aborted_count)
        return position + 4, error, _SIZE.unpack_from(answer, position)[0]

    def _follow(self, records: memoryview) -> None:
        """Advance `next_offset` to the end of the last whole batch; the broker may cut off the
        one after it.
        """
        position = 0
        while len(records) - position >= _BATCH_HEADER_SIZE:
            base_offset, length = _BATCH.unpack_from(records, position)
            if position + _LOG_OVERHEAD + length > len(records):
                break
            (delta,) = _LAST_OFFSET_DELTA.unpack_from(
                records, position + _LAST_OFFSET_DELTA_POSITION
            )
            last_offset = base_offset + delta
            # The first batch may begin below the requested offset.
            if last_offset < self.next_offset or (position and base_offset != self.next_offset):
                raise RuntimeError(
                    f"batches do not follow: expected={self.next_offset} base_offset={base_offset}"
                )
            self.next_offset = last_offset + 1
            position += _LOG_OVERHEAD + length


def run(
    address: str,
    topic: str,
    *,
    records: int,
    fetch_bytes: int,
    consumers: int = 1,
    properties: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Let `consumers` processes each read `records` records of partition 0 from its first offset.

    `mb_per_s` and `records_per_s` are totals, from the first answer to the last: a sum of rates
    would favour a broker that serves one consumer after the other. `bytes` are those of one
    consumer, `longest_fetch_ms` is the longest wait of any of them. `properties` have the login.
    """
    command = ["bench.fetch_client", address, topic, str(records), str(fetch_bytes)]
    command.append(json.dumps(dict(properties or {})))
    runs = begin_at_once(command, consumers)
    seconds = max(run["ended_s"] for run in runs) - min(run["began_s"] for run in runs)
    return {
        "records_per_s": sum(run["records"] for run in runs) / seconds,
        "mb_per_s": sum(run["bytes"] for run in runs) / seconds / 1e6,
        "bytes": runs[0]["bytes"],
        "seconds": seconds,
        "longest_fetch_ms": max(run["longest_fetch_ms"] for run in runs),
        "client_cpu_s": sum(run["client_cpu_s"] for run in runs),
    }


def _consume(
    address: str, topic: str, records: int, fetch_bytes: int, properties: Mapping[str, str]
) -> dict[str, float]:
    """Consume up to offset `records`, timed from the first answer.

    Connecting and the look-up of the first offset take the same time on any broker.
    """
    client = FetchClient(connect(address, properties), topic, fetch_bytes)
    print("connected", flush=True)
    sys.stdin.readline()
    while client.next_offset == 0:
        client.fetch()
    first_offset, size, longest_s = client.next_offset, 0, 0.0
    began = requested = time.monotonic()
    while client.next_offset < records:
        size += client.fetch()
        now = time.monotonic()
        longest_s, requested = max(longest_s, now - requested), now
    client.close()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "records": float(client.next_offset - first_offset),
        "bytes": float(size),
        "began_s": began,
        "ended_s": requested,
        "longest_fetch_ms": longest_s * 1000,
        "client_cpu_s": usage.ru_utime + usage.ru_stime,
    }


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fetch_client")
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("records", type=int)
    parser.add_argument("fetch_bytes", type=int)
    parser.add_argument("properties", type=json.loads)
    print(json.dumps(_consume(**vars(parser.parse_args()))))


if __name__ == "__main__":
    _main()
