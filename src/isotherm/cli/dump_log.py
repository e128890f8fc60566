"""`isotherm dump-log`: prints a file of a Kafka log, of Isotherm or Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from isotherm.cli.decoded_values import VALUE_DECODERS, ValueDecoder, decoder_for
from isotherm.cli.options import AsJson
from isotherm.cli.output import console, human_row, print_rows
from isotherm.cli.shown_bytes import json_fields, json_headers, terminal_text
from isotherm.errors import CorruptDataError, CorruptMetadataError, CorruptRecordError
from isotherm.printable import printable
from isotherm.record.batch import (
    BatchHeader,
    Record,
    iterate_batches,
    read_records,
    verify_batch_crc,
)
from isotherm.record.control import ControlRecord, read_control_records
from isotherm.segment.file_names import (
    LEADER_EPOCH_CHECKPOINT_NAME,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    parse_segment_file_name,
)
from isotherm.segment.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from isotherm.segment.offset_index import read_offset_index
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.segment.time_index import read_time_index
from isotherm.segment.transaction_index import read_transaction_index

Row = dict[str, Any]

_EXIT_DAMAGE = 3
_BATCH_COLUMNS = [
    "base_offset", "last_offset", "count", "position", "size", "codec", "crc_valid",
    "leader_epoch", "producer_id", "producer_epoch", "base_sequence", "max_timestamp",
    "delete_horizon_ms", "flags",
]  # fmt: skip


def dump_log(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False)],
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Print every record, not only the batches.")
    ] = False,
    decode: Annotated[
        str | None,
        typer.Option(
            help="How to show values: text, remote-log-metadata or cluster-metadata; by default"
            " the folder's name decides."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print segments, indexes, producer snapshots and leader-epoch checkpoints.

    As JSON, key_encoding and value_encoding say how a text becomes the bytes again: utf-8, or
    base64 for bytes that are not UTF-8. Headers are a list of objects with key, value and encoding,
    as several may have one name.

    Times are UTC, and milliseconds since 1970 as JSON; sizes are bytes as JSON.

    The CRC of every batch is checked. Exit code 3 means damage; everything readable before it is
    printed.
    """
    if decode is not None and decode not in VALUE_DECODERS:
        raise typer.BadParameter(f"one of {', '.join(VALUE_DECODERS)}", param_hint="--decode")
    damaged = False
    for path in files:
        if len(files) > 1 and not as_json:
            console().print(f"\n{path}", style="bold")
        damaged |= _dump_file(path, records, decode, as_json)
    if damaged:
        raise typer.Exit(_EXIT_DAMAGE)


def _dump_file(path: Path, with_records: bool, decode: str | None, as_json: bool) -> bool:
    """Print one file, and return whether it is damaged."""
    if path.suffix == LOG_SUFFIX:
        return _dump_segment(path, with_records or decode is not None, decode, as_json)
    reader = _INDEX_READERS.get(path.suffix)
    if reader is None and path.name != LEADER_EPOCH_CHECKPOINT_NAME:
        raise typer.BadParameter(
            f"not a segment, index, snapshot or leader-epoch checkpoint: {path}", param_hint="FILE"
        )
    try:
        rows = reader(path) if reader else _leader_epoch_rows(path)
    except CorruptDataError as error:
        _print_damage([str(error)], path)
        return True
    columns = list(rows[0]) if rows else ["empty"]
    print_rows(columns, _shown(rows, as_json=as_json), as_json=as_json)
    return False


def _base_offset(path: Path) -> int:
    name = parse_segment_file_name(path.name)
    if name is None:
        raise typer.BadParameter(
            f"the name is not a 20-digit offset with a suffix: {path.name}", param_hint="FILE"
        )
    return name.base_offset


def _offset_index_rows(path: Path) -> list[Row]:
    return [entry._asdict() for entry in read_offset_index(path.read_bytes(), _base_offset(path))]


def _time_index_rows(path: Path) -> list[Row]:
    return [entry._asdict() for entry in read_time_index(path.read_bytes(), _base_offset(path))]


def _transaction_index_rows(path: Path) -> list[Row]:
    entries = read_transaction_index(path.read_bytes(), _base_offset(path))
    return [entry._asdict() for entry in entries]


def _producer_snapshot_rows(path: Path) -> list[Row]:
    return [entry._asdict() for entry in read_producer_snapshot(path.read_bytes())]


def _leader_epoch_rows(path: Path) -> list[Row]:
    return [entry._asdict() for entry in read_leader_epoch_checkpoint(path.read_bytes())]


_INDEX_READERS: dict[str, Callable[[Path], list[Row]]] = {
    OFFSET_INDEX_SUFFIX: _offset_index_rows,
    TIME_INDEX_SUFFIX: _time_index_rows,
    TRANSACTION_INDEX_SUFFIX: _transaction_index_rows,
    PRODUCER_SNAPSHOT_SUFFIX: _producer_snapshot_rows,
}


def _dump_segment(path: Path, with_records: bool, decode: str | None, as_json: bool) -> bool:
    data = memoryview(path.read_bytes())
    decoder = decoder_for(decode, path.parent.name)
    damage: list[str] = []
    if with_records:
        rows = _record_rows(data, decoder, damage, as_json=as_json)
        columns = ["offset", "timestamp", "key", "value", "headers"]
    else:
        rows, columns = _batch_rows(data, damage), _BATCH_COLUMNS
    print_rows(columns, _shown(rows, as_json=as_json), as_json=as_json)
    _print_damage(damage, path)
    return bool(damage)


def _print_damage(damage: Iterable[str], path: Path) -> None:
    for line in damage:
        typer.echo(f"isotherm: {printable(f'{line} file={path}')}", err=True)


def _shown(rows: Iterable[Row], *, as_json: bool) -> Iterable[Row]:
    """The rows with exact numbers as JSON, and with units for people."""
    return rows if as_json else map(human_row, rows)


def _checked_batches(
    data: memoryview, damage: list[str]
) -> Iterator[tuple[int, BatchHeader, bool]]:
    """Yield the position, header and CRC result of each batch, up to the first damaged header."""
    end = 0
    try:
        for position, header in iterate_batches(data):
            try:
                verify_batch_crc(data, position, header)
                valid = True
            except CorruptRecordError as error:
                damage.append(str(error))
                valid = False
            yield position, header, valid
            end = position + header.size_in_bytes
    except CorruptRecordError as error:
        damage.append(f"{error} position={end}")
        return
    if end < len(data):
        damage.append(f"bytes after the last whole batch size={len(data) - end} position={end}")


def _batch_rows(data: memoryview, damage: list[str]) -> Iterator[Row]:
    for position, header, valid in _checked_batches(data, damage):
        yield {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "count": header.records_count,
            "position": position,
            "size": header.size_in_bytes,
            "codec": header.compression_type.name.lower(),
            "crc_valid": valid,
            "leader_epoch": header.partition_leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "max_timestamp": header.max_timestamp,
            "delete_horizon_ms": header.delete_horizon_ms,
            "flags": _flags(header),
        }


def _flags(header: BatchHeader) -> list[str]:
    flags = {
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete-horizon": header.has_delete_horizon,
        "log-append-time": header.timestamp_type == 1,
    }
    return [name for name, on in flags.items() if on]


def _record_rows(
    data: memoryview, decoder: ValueDecoder, damage: list[str], *, as_json: bool
) -> Iterator[Row]:
    """The rows of all records that can be read. `damage` gets a line for each batch whose records
    cannot, and for each value that the decoder does not read and that is shown as its bytes."""
    for position, header, valid in _checked_batches(data, damage):
        if not valid:
            continue
        try:
            if header.is_control:
                yield from map(_control_row, read_control_records(data, position, header))
                continue
            records = read_records(data, position, header)
        except CorruptRecordError as error:
            damage.append(f"{error} position={position}")
            continue
        for record in records:
            yield _record_row(record, decoder, damage, as_json=as_json)


def _record_row(record: Record, decoder: ValueDecoder, damage: list[str], *, as_json: bool) -> Row:
    try:
        value = decoder(record)
    except CorruptMetadataError as error:
        damage.append(f"{error} offset={record.offset}")
        value = record.value
    row = {"offset": record.offset, "timestamp": record.timestamp_ms}
    if as_json:
        fields = {"value": value} if isinstance(value, dict) else json_fields("value", value)
        return {
            **row,
            **json_fields("key", record.key),
            **fields,
            "headers": json_headers(record.headers),
        }
    return {
        **row,
        "key": _cell(record.key),
        "value": value if isinstance(value, dict) else _cell(value),
        "headers": [{"key": name, "value": _cell(data)} for name, data in record.headers],
    }


def _cell(data: bytes | None) -> str | None:
    return None if data is None else terminal_text(data)


def _control_row(record: ControlRecord) -> Row:
    value = {"coordinator_epoch": record.coordinator_epoch} if record.is_transaction_marker else {}
    return {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": record.type.name,
        "value": value,
        "headers": [],
    }
