"""Snapshots of the cluster's metadata, as files in the directory of the `__cluster_metadata-0` log.

    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint     complete
    <...>-new.checkpoint.part                                 being downloaded or written

A file has batches whose offsets start at 0: a control batch that begins with SNAPSHOT_HEADER, the
records, and a control batch with SNAPSHOT_FOOTER. A file without the footer is incomplete.
Source: KIP-630; Kafka Snapshots, RecordsSnapshotReader, RecordsSnapshotWriter.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from isotherm.broker.metadata.cluster_metadata_topic import BATCH_SIZE_MAX
from isotherm.broker.metadata.metadata_records import MetadataRecord
from isotherm.broker.metadata.quorum.metadata_fetch import SnapshotId
from isotherm.errors import CorruptMetadataError, CorruptRecordError
from isotherm.log.fs import File, FileSystem
from isotherm.protocol.framed_messages import encode_framed
from isotherm.record.batch import (
    BatchHeader,
    NewRecord,
    build_batch,
    read_batch_header,
    verify_batch_crc,
)
from isotherm.record.batch_header import LOG_OVERHEAD
from isotherm.record.control import ControlRecordType, read_control_records
from isotherm.types import Position, TimestampMs

SUFFIX = ".checkpoint"
PARTIAL_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8
# Batches of a snapshot are about as large as those of the log. A larger size means that the file is
# damaged, and must not be allocated.
_BATCH_SIZE_MAX = 2 * BATCH_SIZE_MAX
# The bytes of records after which a batch ends in a snapshot that this node writes.
_OWN_BATCH_SIZE = 1024 * 1024

_CONTROL_KEY = struct.Struct(">hh")
_HEADER_VALUE = struct.Struct(">hqB")  # version, last contained log timestamp, no tagged fields
_KRAFT_VERSION_VALUE = struct.Struct(">hhB")  # version, level, no tagged fields
_FOOTER_VALUE = struct.Struct(">hB")  # version, no tagged fields


class SnapshotBatch(NamedTuple):
    """The bytes of one batch, and its header."""

    records: memoryview
    header: BatchHeader


def snapshot_name(snapshot_id: SnapshotId) -> str:
    return f"{snapshot_id.end_offset:020d}-{snapshot_id.epoch:010d}{SUFFIX}"


class SnapshotFiles:
    """The snapshots in one directory. For one thread. Methods raise OSError."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory

    def latest(self) -> SnapshotId | None:
        names = map(_NAME.fullmatch, self._fs.list_names(self._directory))
        ids = (SnapshotId(int(match[1]), int(match[2])) for match in names if match)
        # The snapshot at offset 0 is the bootstrap snapshot of controllers; it has no records.
        return max((snapshot_id for snapshot_id in ids if snapshot_id.end_offset > 0), default=None)

    def clean_up(self, kept: SnapshotId | None) -> None:
        """Remove every snapshot except `kept`, and the files of incomplete ones."""
        for name in self._fs.list_names(self._directory):
            is_other = _NAME.fullmatch(name) and (kept is None or name != snapshot_name(kept))
            if is_other or name.endswith((PARTIAL_SUFFIX, DELETED_SUFFIX)):
                self._fs.remove(self._directory / name)

    def begin(self, snapshot_id: SnapshotId) -> PartialSnapshot:
        """An empty file for a snapshot that is downloaded or written."""
        path = self._directory / snapshot_name(snapshot_id)
        partial = path.with_name(path.name.removesuffix(SUFFIX) + "-new" + PARTIAL_SUFFIX)
        self._fs.remove(partial)
        return PartialSnapshot(self._fs, partial, path)

    def batches(self, snapshot_id: SnapshotId) -> Iterator[SnapshotBatch]:
        """Every batch in order, with one in memory at a time.

        Raises CorruptMetadataError if the file is damaged or has no footer at its end.
        """
        path = self._directory / snapshot_name(snapshot_id)
        file = self._fs.open_readable(path)
        try:
            is_complete = False
            for batch in _batches(file, path):
                is_complete = batch.header.is_control and _has_footer(batch)
                yield batch
            if not is_complete:
                raise CorruptMetadataError(f"a metadata snapshot has no footer file={path}")
        finally:
            file.close()


class PartialSnapshot:
    """A snapshot that `finish` makes durable and visible."""

    def __init__(self, fs: FileSystem, partial: Path, path: Path) -> None:
        self._fs = fs
        self._partial = partial
        self._path = path
        self._file = fs.open_writable(partial)
        self.size: Position = 0

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self._file.write_at(self.size, data)
        self.size += len(data)

    def finish(self) -> None:
        self._file.sync()
        self._file.close()
        # The file is durable before it gets its name: after a crash a named snapshot is always
        # complete.
        self._fs.rename(self._partial, self._path)
        self._fs.sync_directory(self._path.parent)

    def discard(self) -> None:
        """Remove the file. No effect after `finish`."""
        self._file.close()
        self._fs.remove(self._partial)


def write_snapshot(
    target: PartialSnapshot,
    epoch: int,
    kraft_version: int,
    records: Iterable[MetadataRecord],
    timestamp_ms: TimestampMs,
) -> None:
    """Write a whole snapshot of `records`. One batch of encoded records is in memory at a time.

    The voters of the quorum are left out, because only a controller reads them from its own
    snapshot.
    """
    offset = 0

    def append(batch: list[NewRecord], *, is_control: bool) -> None:
        nonlocal offset
        target.append(
            build_batch(
                batch, base_offset=offset, partition_leader_epoch=epoch, is_control=is_control
            )
        )
        offset += len(batch)

    def control(kind: ControlRecordType, value: bytes) -> NewRecord:
        return NewRecord(timestamp_ms, _CONTROL_KEY.pack(0, kind), value)

    head = [control(ControlRecordType.SNAPSHOT_HEADER, _HEADER_VALUE.pack(0, timestamp_ms, 0))]
    if kraft_version:
        level = _KRAFT_VERSION_VALUE.pack(0, kraft_version, 0)
        head.append(control(ControlRecordType.KRAFT_VERSION, level))
    append(head, is_control=True)
    batch: list[NewRecord] = []
    size = 0
    for record in records:
        value = encode_framed(record)
        batch.append(NewRecord(timestamp_ms, None, value))
        size += len(value)
        if size >= _OWN_BATCH_SIZE:
            append(batch, is_control=False)
            batch, size = [], 0
    if batch:
        append(batch, is_control=False)
    footer = control(ControlRecordType.SNAPSHOT_FOOTER, _FOOTER_VALUE.pack(0, 0))
    append([footer], is_control=True)


def _batches(file: File, path: Path) -> Iterator[SnapshotBatch]:
    position, size = 0, file.size()
    while position < size:
        start = file.read_at(position, LOG_OVERHEAD)
        length = (
            _LENGTH.unpack_from(start, _LENGTH_POSITION)[0] if len(start) == LOG_OVERHEAD else -1
        )
        if not 0 <= length <= _BATCH_SIZE_MAX:
            raise CorruptMetadataError(f"a metadata snapshot is damaged file={path} at={position}")
        data = memoryview(file.read_at(position, LOG_OVERHEAD + length))
        try:
            header = read_batch_header(data)
            verify_batch_crc(data, 0, header)
        except CorruptRecordError as error:
            raise CorruptMetadataError(
                f"a metadata snapshot is damaged file={path} at={position}"
            ) from error
        yield SnapshotBatch(data, header)
        position += len(data)


def _has_footer(batch: SnapshotBatch) -> bool:
    records = read_control_records(batch.records, 0, batch.header)
    return any(record.type is ControlRecordType.SNAPSHOT_FOOTER for record in records)
