"""Kafka's dump tool reads the files that an Isotherm broker left on its disk and in its bucket."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.servers import IsothermServer
from isotherm.record.compression import CompressionType
from oracle.dump_text import DumpedFile, parse_dump
from oracle.kafka import dump_log_segments, run_tool
from oracle.tiered_topic import fill_tiered_topic
from oracle.topics import create_topic

RECORDS = 6000
JAVA_RECORDS = 2000


@pytest.fixture(scope="module")
def stopped_broker(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> IsothermServer:
    """A broker that took records from librdkafka and Java, tiered a topic, and stopped cleanly.

    Its metadata is at level 0: Kafka's tools know no other."""
    server = IsothermServer(
        tmp_path_factory.mktemp("isotherm"), {"remote.log.metadata.compaction.initial.level": "0"}
    )
    server.start()
    try:
        _write(server)
    finally:
        server.stop()
    return server


def _write(server: IsothermServer) -> None:
    address = server.bootstrap_server
    fill_tiered_topic(address, server.log_dir, "tiered", partitions=2, records=RECORDS)
    create_topic(address, "local", 1, {"index.interval.bytes": "512"})
    for codec in CompressionType:
        options = {"bootstrap.servers": address, "compression.type": codec.name.lower()}
        producer = Producer({**options, "enable.idempotence": True})
        for i in range(100):
            producer.produce("local", key=f"k{i}", value=f"value {i} " * 10, partition=0)
        assert producer.flush(300) == 0
    run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic=local", f"--num-records={JAVA_RECORDS}", "--record-size=100", "--throughput=-1",
        "--producer-props", f"bootstrap.servers={address}", "compression.type=zstd",
    )  # fmt: skip


def _dump(files: list[Path], *options: str) -> list[DumpedFile]:
    assert files
    return list(parse_dump(dump_log_segments(sorted(files), *options)).values())


def _segment_files(directory: Path) -> Iterator[Path]:
    for suffix in (".log", ".index", ".timeindex", ".snapshot"):
        yield from directory.glob(f"*{suffix}")


def test_kafka_finds_no_fault_in_the_log_dir(stopped_broker) -> None:
    directories = [path for path in stopped_broker.log_dir.iterdir() if path.is_dir()]
    files = [file for directory in directories for file in _segment_files(directory)]
    dumped = _dump(files, "--deep-iteration")
    assert {file.name: file.remarks for file in dumped if file.remarks} == {}
    assert {batch["isvalid"] for file in dumped for batch in file.batches} == {"true"}


def test_kafka_reads_every_record_of_every_client(stopped_broker) -> None:
    segments = list((stopped_broker.log_dir / "local-0").glob("*.log"))
    dumped = _dump(segments, "--deep-iteration")
    offsets = [int(record["offset"]) for file in dumped for record in file.records]
    assert offsets == list(range(100 * len(CompressionType) + JAVA_RECORDS))
    codecs = {batch["compresscodec"] for file in dumped for batch in file.batches}
    assert codecs == {codec.name.lower() for codec in CompressionType}


def test_kafka_reads_the_segments_in_the_bucket(stopped_broker, tmp_path) -> None:
    """The objects are Kafka's segments byte for byte; the tool wants Kafka's names for them."""
    offsets: dict[int, list[int]] = {0: [], 1: []}
    for partition, read in offsets.items():
        objects = sorted(stopped_broker.remote_dir.glob(f"**/tiered-*/{partition}/*.log"))
        assert len(objects) >= 2
        for path in objects:
            (tmp_path / f"{path.name[:20]}.log").write_bytes(path.read_bytes())
        local = (stopped_broker.log_dir / f"tiered-{partition}").glob("*.log")
        for file in _dump([*tmp_path.glob("*.log"), *local], "--deep-iteration"):
            assert file.remarks == []
            read += [int(record["offset"]) for record in file.records]
        for path in tmp_path.glob("*.log"):
            path.unlink()
    assert {partition: sorted(read) for partition, read in offsets.items()} == {
        partition: list(range(RECORDS // 2)) for partition in (0, 1)
    }


def test_kafka_decodes_the_metadata_of_the_remote_tier(stopped_broker) -> None:
    segments = list(stopped_broker.log_dir.glob("__remote_log_metadata-*/*.log"))
    dumped = _dump(segments, "--remote-log-metadata-decoder")
    payloads = [record["payload"] for file in dumped for record in file.records]
    finished = [p for p in payloads if "state=COPY_SEGMENT_FINISHED" in p]
    started = [p for p in payloads if "state=COPY_SEGMENT_STARTED" in p]
    objects = list(stopped_broker.remote_dir.glob("**/*.log"))
    assert len(started) == len(finished) == len(objects)


def test_dump_tool_rejects_what_is_no_segment(stopped_broker, tmp_path) -> None:
    """The tests above can fail: damaged bytes are noticed."""
    source = next((stopped_broker.log_dir / "local-0").glob("*.log"))
    data = bytearray(source.read_bytes())
    data[70] ^= 0xFF
    damaged = tmp_path / source.name
    damaged.write_bytes(data)
    try:
        dumped = _dump([damaged], "--deep-iteration")
    except subprocess.CalledProcessError:
        return
    assert "false" in {batch["isvalid"] for file in dumped for batch in file.batches}
