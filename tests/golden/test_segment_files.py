"""Index, snapshot and checkpoint codecs against files that Kafka wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.log.checkpoints import (
    encode_offset_checkpoint,
    encode_partition_metadata,
    read_offset_checkpoint,
    read_partition_metadata,
)
from isotherm.segment.file_names import parse_partition_directory, parse_segment_file_name
from isotherm.segment.leader_epoch_checkpoint import (
    EpochEntry,
    encode_leader_epoch_checkpoint,
    read_leader_epoch_checkpoint,
)
from isotherm.segment.offset_index import (
    check_offset_index,
    encode_offset_index,
    read_offset_index,
)
from isotherm.segment.producer_snapshot import encode_producer_snapshot, read_producer_snapshot
from isotherm.segment.time_index import check_time_index, encode_time_index, read_time_index
from isotherm.segment.transaction_index import encode_transaction_index, read_transaction_index
from isotherm.types import uuid_to_text


def _files(golden, partition_directory: str, suffix: str) -> list[Path]:
    return sorted((golden.log_dir / partition_directory).glob(f"*{suffix}"))


def _base_offset(path: Path) -> int:
    name = parse_segment_file_name(path.name)
    assert name is not None
    return name.base_offset


def test_offset_indexes_are_what_kafka_prints(golden, partition_directory) -> None:
    dump = golden.dump(partition_directory)
    for path in _files(golden, partition_directory, ".index"):
        data, base_offset = path.read_bytes(), _base_offset(path)
        check_offset_index(data, base_offset)
        entries = read_offset_index(data, base_offset)
        assert [
            {"offset": str(entry.offset), "position": str(entry.position)} for entry in entries
        ] == dump[path.name].entries
        assert encode_offset_index(entries, base_offset) == data


def test_time_indexes_are_what_kafka_prints(golden, partition_directory) -> None:
    dump = golden.dump(partition_directory)
    for path in _files(golden, partition_directory, ".timeindex"):
        data, base_offset = path.read_bytes(), _base_offset(path)
        check_time_index(data, base_offset)
        entries = read_time_index(data, base_offset)
        printed = [{"timestamp": str(e.timestamp_ms), "offset": str(e.offset)} for e in entries]
        assert printed == dump[path.name].entries
        assert encode_time_index(entries, base_offset) == data


def test_transaction_indexes_are_what_kafka_prints(golden) -> None:
    dump = golden.dump("transactions-0")
    paths = _files(golden, "transactions-0", ".txnindex")
    assert len(paths) >= 2
    for path in paths:
        data = path.read_bytes()
        entries = read_transaction_index(data, _base_offset(path))
        assert [
            {
                "version": "0",
                "producerId": str(entry.producer_id),
                "firstOffset": str(entry.first_offset),
                "lastOffset": str(entry.last_offset),
                "lastStableOffset": str(entry.last_stable_offset),
            }
            for entry in entries
        ] == dump[path.name].entries
        assert encode_transaction_index(entries) == data


def test_producer_snapshots_are_what_kafka_prints(golden, partition_directory) -> None:
    dump = golden.dump(partition_directory)
    for path in _files(golden, partition_directory, ".snapshot"):
        data = path.read_bytes()
        entries = read_producer_snapshot(data)
        assert encode_producer_snapshot(entries) == data
        assert [
            (
                entry.producer_id,
                entry.producer_epoch,
                entry.coordinator_epoch,
                entry.last_sequence,
                entry.last_offset,
                entry.offset_delta,
                entry.timestamp_ms,
                entry.current_transaction_first_offset,
            )
            for entry in entries
        ] == [_snapshot_entry(printed) for printed in dump[path.name].entries]


def _snapshot_entry(printed: dict[str, str]) -> tuple[int, ...]:
    """Kafka leaves the batch's fields out for a producer that only has a marker."""
    first_offset = printed["currentTxnFirstOffset"].removeprefix("OptionalLong")
    return (
        int(printed["producerId"]),
        int(printed["producerEpoch"]),
        int(printed["coordinatorEpoch"]),
        int(printed.get("lastSequence", -1)),
        int(printed.get("lastOffset", -1)),
        int(printed.get("offsetDelta", 0)),
        int(printed["lastTimestamp"]),
        -1 if first_offset == ".empty" else int(first_offset.strip("[]")),
    )


def test_leader_epoch_checkpoints_encode_to_the_same_bytes(golden, partition_directory) -> None:
    data = (golden.log_dir / partition_directory / "leader-epoch-checkpoint").read_bytes()
    assert encode_leader_epoch_checkpoint(read_leader_epoch_checkpoint(data)) == data


def test_leader_epoch_checkpoint_has_an_entry_for_each_epoch_that_wrote(golden) -> None:
    data = (golden.log_dir / "client-none-0" / "leader-epoch-checkpoint").read_bytes()
    first, second = read_leader_epoch_checkpoint(data)
    assert first == EpochEntry(epoch=0, start_offset=0)
    assert second.epoch > 0
    assert second.start_offset == 71


def test_segment_names_and_partition_directories_parse(golden, partition_directory) -> None:
    parsed = parse_partition_directory(partition_directory)
    assert parsed is not None
    topic, partition = partition_directory.rsplit("-", 1)
    assert (parsed.topic_partition.topic, parsed.topic_partition.partition) == (
        topic,
        int(partition),
    )
    for path in (golden.log_dir / partition_directory).glob("*.log"):
        assert _base_offset(path) == int(path.stem)


@pytest.mark.parametrize("name", ["tiered-0", "tiered-expired-0"])
def test_topic_id_of_the_partition_metadata_names_the_remote_folder(golden, name) -> None:
    data = (golden.log_dir / name / "partition.metadata").read_bytes()
    topic_id = read_partition_metadata(data)
    assert (golden.tiered_root / f"{name}-{uuid_to_text(topic_id)}").is_dir()
    assert encode_partition_metadata(topic_id) == data


def test_offset_checkpoints_name_every_partition(golden, partition_directory) -> None:
    parsed = parse_partition_directory(partition_directory)
    assert parsed is not None
    data = (golden.log_dir / "recovery-point-offset-checkpoint").read_bytes()
    offsets = read_offset_checkpoint(data)
    if partition_directory != "__cluster_metadata-0":
        assert offsets[parsed.topic_partition] > 0
    assert read_offset_checkpoint(encode_offset_checkpoint(offsets)) == offsets
