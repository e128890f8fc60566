"""Batches that are large when decompressed: the broker's memory stays below what
docs/security.md says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bench.hostile_search import decompression_bound
from isotherm.config.server_properties import parse_broker_config
from isotherm.protocol.api_keys import ApiKey
from isotherm.record.batch import HEADER_SIZE, build_batch, encode_batch, read_batch_header
from isotherm.record.compression import CompressionType, compress
from isotherm.testing.broker_process import BrokerProcess
from oracle.raw_requests import ask, request_frame
from oracle.topics import create_topic

TOPIC = "attacked"
CLIENTS = 4
PARTITIONS = 10
PAUSE_S = 0.005
T0 = 1_700_000_000_000
DECOMPRESSED_MAX = 64 * 2**20
# Requests, answers and what else a request takes, beside batches of some KB: some MB.
OTHERS = 48 * 2**20


class LargestMemory:
    """Looks at a process again and again, and keeps the most resident memory in bytes."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self.size = 0

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    @contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(PAUSE_S):
            self.size = max(self.size, self.now())


def produce_frame(batch: bytes) -> bytes:
    data = [{"index": index, "records": batch.hex()} for index in range(PARTITIONS)]
    topics = [{"name": TOPIC, "partition_data": data}]
    return request_frame(ApiKey.PRODUCE, 9, {"acks": 1, "timeout": 60_000, "topic_data": topics})


def list_offsets_frame() -> bytes:
    """A look-up by time in each partition that finds nothing: all of its records are read."""
    partitions = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": T0 + 1}
        for index in range(PARTITIONS)
    ]
    topics = [{"name": TOPIC, "partitions": partitions}]
    return request_frame(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": topics})


def batch_of_one(size: int) -> bytes:
    """One record of so many bytes in a batch of some KB."""
    return bytes(build_batch([(T0, None, bytes(size), ())], compression=CompressionType.ZSTD))


def batch_of_many(size: int) -> bytes:
    """The smallest records, so many that they have that size together."""
    record = bytes(build_batch([(T0, None, None, ())]))
    header, body = read_batch_header(record), record[HEADER_SIZE:]
    # Their offsets are all 0, which a look-up accepts and a produce request does not.
    count = size // len(body)
    attributes = int(CompressionType.ZSTD)
    many = header._replace(records_count=count, last_offset_delta=count - 1, attributes=attributes)
    return bytes(encode_batch(many, compress(CompressionType.ZSTD, body * count)))


# Made by the test: each has a batch of 64 MiB.
FRAMES = {
    "stored": lambda: [produce_frame(batch_of_one(DECOMPRESSED_MAX - 100))],
    "too large": lambda: [produce_frame(batch_of_one(DECOMPRESSED_MAX))],
    "refused for a record": lambda: [produce_frame(batch_of_many(DECOMPRESSED_MAX - 100))],
    "searched": lambda: [
        produce_frame(batch_of_one(DECOMPRESSED_MAX - 100)),
        list_offsets_frame(),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMES)
def test_memory_is_bounded_over_all_requests(tmp_path: Path, name: str) -> None:
    frames = FRAMES[name]()
    broker = BrokerProcess(tmp_path, {"message.decompressed.max.bytes": str(DECOMPRESSED_MAX)})
    try:
        address = broker.bootstrap_servers
        create_topic(address, TOPIC, PARTITIONS, {"retention.ms": "-1"})
        # Kernels and codecs are loaded.
        assert isinstance(ask(address, produce_frame(batch_of_one(2 << 20))), bytes)
        memory = LargestMemory(broker.process.pid)
        before = memory.now()
        with memory.watched(), ThreadPoolExecutor(CLIENTS) as clients:
            for frame in frames:
                answers = list(clients.map(ask, [address] * CLIENTS, [frame] * CLIENTS))
                assert all(isinstance(answer, bytes) for answer in answers), answers
    finally:
        broker.kill()
    config = parse_broker_config({"message.decompressed.max.bytes": str(DECOMPRESSED_MAX)})
    assert memory.size - before < decompression_bound(config) + OTHERS, memory.size - before
