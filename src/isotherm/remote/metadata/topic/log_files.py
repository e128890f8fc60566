"""Reads the files of a metadata partition's log: of a log directory, or copies of them in folders
or buckets.

Nothing is locked, recovered or changed, so a broker may be running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from isotherm.errors import CorruptRecordError
from isotherm.record.batch_header import HEADER_SIZE, read_batch_header
from isotherm.record.batch_table import read_batch_table
from isotherm.record.columns import RecordColumns, decode_columns
from isotherm.remote.metadata.api import MetadataColumns
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.segment.file_names import LOG_SUFFIX
from isotherm.types import Offset

# The size of one read, and about that of the records of one run.
RUN_MAX_BYTES = 16 * 1024 * 1024
_COLUMNS = frozenset({"timestamp", "key", "value"})

OnDamage: TypeAlias = Callable[[Offset, str], None]
"""Called with the offset of a damaged batch, or the first offset after it, and the reason. What it
raises ends the read."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a partition's log: the index of its store, and its key there."""

    store: int
    key: str
    size: int

    @property
    def base_offset(self) -> Offset:
        return int(self.key.rpartition("/")[2].removesuffix(LOG_SUFFIX))


def read_log_files(
    stores: Sequence[ObjectClient],
    files: Sequence[LogFile],
    offsets: tuple[Offset, Offset],
    on_damage: OnDamage,
    run_bytes: int = RUN_MAX_BYTES,
) -> Iterator[RecordColumns]:
    """The records of these offsets, in runs of the batches in about `run_bytes`.

    `files` are those of one partition in order. A run may be empty: its `next_offset` tells how far
    the read is. Of damaged data only the damaged batches are skipped, if `on_damage` returns. The
    last file may end within a batch, as a broker may be appending to it.
    """
    for index, file in enumerate(files):
        if file.base_offset >= offsets[1]:
            return
        is_last = index + 1 == len(files)
        reader = _FileReader(stores[file.store], file, on_damage, is_last=is_last)
        yield from reader.runs(offsets, run_bytes)


def metadata_columns(decoded: RecordColumns) -> MetadataColumns:
    """The columns of a run of `read_log_files` that a fold needs."""
    assert decoded.key is not None
    assert decoded.value is not None
    return MetadataColumns(decoded.offset, decoded.key, decoded.value, decoded.next_offset)


def end_offset(store: ObjectClient, file: LogFile) -> Offset:
    """The offset after the last complete batch. Only headers are decoded. Raises CorruptRecordError
    for a damaged one."""
    end, position, size = file.base_offset, 0, RUN_MAX_BYTES
    while position < file.size:
        range_end = min(position + size, file.size)
        data = store.get_range(file.key, position, range_end).data
        batches, taken = read_batch_table(data)
        if taken:
            end = int(batches[-1]["base_offset"] + batches[-1]["last_offset_delta"]) + 1
            position += taken
        elif range_end == file.size:
            break
        else:
            size = _size_of_first_batch(data, size)
    return end


class _FileReader:
    """Reads one file in ranges."""

    def __init__(
        self, store: ObjectClient, file: LogFile, on_damage: OnDamage, *, is_last: bool
    ) -> None:
        self._store = store
        self._file = file
        self._on_damage = on_damage
        self._is_last = is_last

    def runs(self, offsets: tuple[Offset, Offset], run_bytes: int) -> Iterator[RecordColumns]:
        size, position, next_offset = run_bytes, 0, self._file.base_offset
        while position < self._file.size:
            end = min(position + size, self._file.size)
            data = self._store.get_range(self._file.key, position, end).data
            if len(data) < end - position:
                # The cleaner or a truncation of a broker that runs.
                self._on_damage(
                    next_offset,
                    "file has become shorter since it was listed"
                    f" file={self._file.key} position={position + len(data)}"
                    f" size={self._file.size}",
                )
                return
            runs, taken = self._decode(data, offsets, next_offset)
            for columns in runs:
                next_offset = max(next_offset, columns.next_offset)
                yield columns
                if columns.next_offset >= offsets[1]:
                    return
            if taken is None:
                return
            if taken == 0 and end == self._file.size:
                if not self._is_last:
                    self._on_damage(
                        next_offset,
                        f"file ends within a batch and is not the last one file={self._file.key}"
                        f" position={position}",
                    )
                return
            # A batch larger than the range: read it again in one that has it.
            size = size if taken else _size_of_first_batch(data, size)
            position += taken

    def _decode(
        self, data: memoryview, offsets: tuple[Offset, Offset], next_offset: Offset
    ) -> tuple[Sequence[RecordColumns], int | None]:
        """The columns of the complete batches in `data`, and the size of these batches. The size is
        None if nothing after them is readable."""
        try:
            decoded = decode_columns(data, offset_range=offsets, columns=_COLUMNS)
        except CorruptRecordError:
            return self._salvage(data, offsets, next_offset)
        return [decoded] if decoded.position_end else [], decoded.position_end

    def _salvage(
        self, data: memoryview, offsets: tuple[Offset, Offset], next_offset: Offset
    ) -> tuple[list[RecordColumns], int | None]:
        """As `_decode`, but batch by batch, without the damaged ones."""
        salvaged: list[RecordColumns] = []
        position = 0
        while len(data) - position >= HEADER_SIZE:
            try:
                header = read_batch_header(data, position)
            except CorruptRecordError as error:
                # The start of the next batch is unknown.
                self._on_damage(next_offset, f"{error} file={self._file.key}")
                return salvaged, None
            end = position + header.size_in_bytes
            if end > len(data):
                break
            try:
                decoded = decode_columns(data[position:end], offset_range=offsets, columns=_COLUMNS)
                salvaged.append(decoded)
            except CorruptRecordError as error:
                self._on_damage(header.base_offset, f"{error} file={self._file.key}")
            position, next_offset = end, header.next_offset
        return salvaged, position


def _size_of_first_batch(data: memoryview, size: int) -> int:
    """The size of the range that has the first batch of `data` whole, more than `size`."""
    if len(data) < HEADER_SIZE:
        return 2 * size
    return max(read_batch_header(data).size_in_bytes, size + 1)
