"""Kafka's own DumpLogSegments reads the files of a log that Isotherm wrote, and finds no fault."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.log.environment import LogEnvironment
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import load_log
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import CompressionType, Record, build_batch, iterate_batches
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition, TopicPartition
from oracle.dump_text import DumpedFile, parse_dump
from oracle.kafka import dump_log_segments

NOW_MS = 1_700_000_000_000
LEADER_EPOCH = 3
SEGMENT_FILES = ("*.log", "*.index", "*.timeindex", "*.txnindex", "*.snapshot")


@dataclass(frozen=True, slots=True)
class WrittenLog:
    """A closed log of several segments, and its records."""

    directory: Path
    records: tuple[Record, ...]
    markers: tuple[tuple[int, str], ...]
    dump: dict[str, DumpedFile]

    def files(self, suffix: str) -> list[DumpedFile]:
        return [file for name, file in sorted(self.dump.items()) if name.endswith(suffix)]


def _open_log(directory: Path, topic: str) -> PartitionLog:
    directory = directory / f"{topic}-0"
    directory.mkdir(parents=True)
    config = TopicConfig(internal_segment_bytes=4096, index_interval_bytes=256)
    environment = LogEnvironment(FileCache(OsFileSystem()), SimClock(NOW_MS), random.Random(0))
    return load_log(
        environment,
        PartitionDirectory(LogDir(directory.parent), directory, TopicPartition(topic, 0)),
        config,
    )


def _dump(directory: Path, *options: str) -> dict[str, DumpedFile]:
    files = sorted(path for pattern in SEGMENT_FILES for path in directory.glob(pattern))
    text = dump_log_segments(files, *options)
    return {Path(name).name: file for name, file in parse_dump(text).items()}


class _Writer:
    """Appends batches of random records and remembers them with their offsets."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.records: list[Record] = []
        self.markers: list[tuple[int, str]] = []

    def append(self, count: int, **batch: object) -> None:
        first = self.log.log_end_offset
        new = [
            Record(
                offset=offset,
                timestamp_ms=NOW_MS + offset * 10 - offset % 3 * 25,
                key=None if offset % 5 == 0 else f"key-{offset}".encode(),
                value=None if offset % 7 == 0 else f"value-{offset} ".encode() * (offset % 6),
                headers=(("h", b"x"), ("null", None)) if offset % 4 == 0 else (),
            )
            for offset in range(first, first + count)
        ]
        rows = [(r.timestamp_ms, r.key, r.value, r.headers) for r in new]
        info = self.log.append_as_leader(build_batch(rows, **batch), LEADER_EPOCH, now_ms=NOW_MS)
        assert (info.first_offset, info.last_offset) == (first, first + count - 1)
        self.records += new

    def end_transaction(self, producer_id: int, marker: ControlRecordType) -> None:
        batch = build_end_transaction_marker(
            marker,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=5,
            timestamp_ms=NOW_MS,
        )
        self.markers.append((self.log.log_end_offset, marker.name))
        self.log.append_as_leader(
            batch, LEADER_EPOCH, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
        )


def _write_everything(writer: _Writer) -> None:
    for _ in range(3):
        for codec in CompressionType:
            writer.append(7, compression=codec)
    for sequence in range(0, 60, 6):
        writer.append(6, producer_id=1, producer_epoch=0, base_sequence=sequence)
    markers = (ControlRecordType.ABORT, ControlRecordType.COMMIT, ControlRecordType.ABORT)
    for turn, marker in enumerate(markers * 4):
        for producer_id in (7, 8):
            writer.append(
                4,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=turn * 4,
                is_transactional=True,
                compression=CompressionType.LZ4,
            )
        writer.end_transaction(8, ControlRecordType.COMMIT)
        writer.end_transaction(7, marker)


@pytest.fixture(scope="module")
def written(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> WrittenLog:
    log = _open_log(tmp_path_factory.mktemp("isotherm"), "t")
    writer = _Writer(log)
    _write_everything(writer)
    log.close()
    return WrittenLog(
        directory=log.directory,
        records=tuple(writer.records),
        markers=tuple(writer.markers),
        dump=_dump(log.directory, "--deep-iteration", "--print-data-log"),
    )


def test_kafka_finds_no_fault_in_any_file(written) -> None:
    assert len(written.files(".log")) >= 3
    assert len(written.files(".txnindex")) >= 2
    assert len(written.files(".snapshot")) >= 3
    assert {name: file.remarks for name, file in written.dump.items() if file.remarks} == {}


def test_kafka_finds_every_batch_valid(written) -> None:
    batches = [batch for file in written.files(".log") for batch in file.batches]
    assert {batch["isvalid"] for batch in batches} == {"true"}
    assert {batch["partitionLeaderEpoch"] for batch in batches} == {str(LEADER_EPOCH)}
    assert {batch["compresscodec"] for batch in batches} == {
        c.name.lower() for c in CompressionType
    }


def test_kafka_reads_the_records_that_were_appended(written) -> None:
    printed = [r for file in written.files(".log") for r in file.records]
    data = [r for r in printed if "endTxnMarker" not in r]
    assert [(int(r["offset"]), int(r["CreateTime"])) for r in data] == [
        (record.offset, record.timestamp_ms) for record in written.records
    ]
    # An absent key or payload is null; the tool prints neither.
    assert [(r.get("key"), r.get("payload"), r["headerKeys"]) for r in data] == [
        (_text(r.key), _text(r.value), f"[{','.join(name for name, _ in r.headers)}]")
        for r in written.records
    ]
    assert [(int(r["offset"]), r["endTxnMarker"]) for r in printed if "endTxnMarker" in r] == [
        *written.markers
    ]


def test_kafka_reads_an_aborted_transaction_for_each_abort_marker(written) -> None:
    entries = [entry for file in written.files(".txnindex") for entry in file.entries]
    aborts = [offset for offset, marker in written.markers if marker == "ABORT"]
    assert [int(entry["lastOffset"]) for entry in entries] == aborts
    assert {entry["producerId"] for entry in entries} == {"7"}


def test_kafka_reads_the_producers_in_the_last_snapshot(written) -> None:
    entries = {e["producerId"]: e for e in written.files(".snapshot")[-1].entries}
    last_sequences = {producer: int(e["lastSequence"]) for producer, e in entries.items()}
    assert last_sequences == {"1": 59, "7": 47, "8": 47}
    assert {e["currentTxnFirstOffset"] for e in entries.values()} == {"OptionalLong.empty"}
    assert (entries["7"]["coordinatorEpoch"], entries["1"]["coordinatorEpoch"]) == ("5", "-1")


@pytest.mark.parametrize("option", ["--verify-index-only", "--index-sanity-check"])
def test_kafka_passes_the_indexes(written, option) -> None:
    indexes = [*written.directory.glob("*.index"), *written.directory.glob("*.timeindex")]
    text = dump_log_segments(sorted(indexes), option)
    dumped = parse_dump(text)
    assert len(dumped) == len(indexes)
    for file in dumped.values():
        allowed = [f"{file.name} passed sanity check."] if "sanity" in option else []
        assert file.remarks == allowed
        assert file.entries == []


def test_kafka_complains_of_an_index_with_a_wrong_offset(written, tmp_path) -> None:
    """The tool does look: one entry that does not match its batch is reported."""
    name = next(file.name for file in written.files(".index") if len(file.entries) >= 2)
    source = written.directory / Path(name).name
    index = bytearray(source.read_bytes())
    (relative_offset,) = struct.unpack_from(">i", index, 8)
    struct.pack_into(">i", index, 8, relative_offset - 1)
    (tmp_path / source.name).write_bytes(index)
    segment = source.with_suffix(".log")
    (tmp_path / segment.name).write_bytes(segment.read_bytes())
    text = dump_log_segments([tmp_path / source.name], "--verify-index-only")
    assert "Mismatches in" in text
    assert any(file.remarks for file in parse_dump(text).values())


def test_kafka_decodes_the_remote_log_metadata_that_isotherm_writes(kafka_tools, tmp_path) -> None:
    log = _open_log(tmp_path, "__remote_log_metadata")
    for event in _events():
        batch = build_batch([(NOW_MS, None, encode_event(event), ())])
        log.append_as_leader(batch, LEADER_EPOCH, now_ms=NOW_MS)
    log.close()
    segment = next(log.directory.glob("*.log"))
    dumped = parse_dump(dump_log_segments([segment], "--remote-log-metadata-decoder"))
    payloads = [record["payload"] for record in dumped[str(segment)].records]
    assert [payload.partition("{")[0] for payload in payloads] == [
        "RemoteLogSegmentMetadata",
        "RemoteLogSegmentMetadataUpdate",
    ]
    assert "startOffset=100, endOffset=199, brokerId=1" in payloads[0]
    assert "segmentLeaderEpochs={0=100, 2=150}" in payloads[0]
    assert "txnIdxEmpty=true" in payloads[0]
    assert "state=COPY_SEGMENT_FINISHED" in payloads[1]


def _events() -> Iterator[RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate]:
    partition = TopicIdPartition(uuid.UUID(int=5), "flights", 3)
    segment_id = RemoteLogSegmentId(partition, uuid.UUID(int=6))
    yield RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=100,
        end_offset_inclusive=199,
        max_timestamp_ms=NOW_MS,
        broker_id=1,
        event_timestamp_ms=NOW_MS + 1,
        segment_size_in_bytes=4096,
        segment_leader_epochs={0: 100, 2: 150},
        txn_index_empty=True,
    )
    yield RemoteLogSegmentMetadataUpdate(
        segment_id=segment_id,
        event_timestamp_ms=NOW_MS + 2,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        broker_id=1,
    )


def test_offsets_of_the_written_log_rise_by_one(written) -> None:
    """Otherwise the tests above could pass on a log that lost its middle."""
    offsets = [
        header.base_offset
        for path in sorted(written.directory.glob("*.log"))
        for _, header in iterate_batches(path.read_bytes())
    ]
    assert offsets == sorted(set(offsets))
    assert written.records[-1].offset == written.markers[-1][0] - 2


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
