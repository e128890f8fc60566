"""Reads the keys of `erase --keys` from a file, on the driver."""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from isotherm.errors import ConfigError
from isotherm.spark.table_frame import table_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY_FORMATS = ("text", "csv", "json", "parquet")
KEY_ENCODINGS = ("text", "hex", "base64")
KEY_COLUMN = "key"

_FORMATS_OF_SUFFIXES = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
# A file of another system may begin with a mark of its encoding, which is no part of the first key.
_ENCODING = "utf-8-sig"
_BINARY = (pa.binary(), pa.large_binary())
_TEXT = (pa.string(), pa.large_string())


def read_keys(path: Path, key_format: str | None, encoding: str) -> list[bytes]:
    """The different keys of a file, sorted. `key_format` and `encoding` are of KEY_FORMATS (None:
    by the name's suffix) and KEY_ENCODINGS.

    text: a key on each line. csv: the column `key`. json: the member `key` of each line's object.
    parquet: the column `key`, text or binary; a binary one has the keys' bytes. Raises ConfigError,
    which names the line or row, for anything else, and for a file without keys.
    """
    key_format = key_format or _FORMATS_OF_SUFFIXES.get(path.suffix.lower(), "text")
    decode = _DECODERS[encoding]
    keys: set[bytes] = set()
    rows = 0
    try:
        for key in _READERS[key_format](path):
            # Bytes are the keys themselves. Only a text may be encoded.
            keys.add(key if isinstance(key, bytes) else decode(key))
            rows += 1
    except (ValueError, binascii.Error, csv.Error, pa.ArrowException) as error:
        raise ConfigError(
            f"the file of keys cannot be read path={path} format={key_format} encoding={encoding}"
            f" after_rows={rows} reason='{error}'"
        ) from None
    except OSError as error:
        raise ConfigError(f"the file of keys cannot be read path={path} reason='{error}'") from None
    if not keys:
        raise ConfigError(f"the file has no key path={path} format={key_format}")
    return sorted(keys)


def keys_digest(keys: Iterable[bytes]) -> str:
    """A digest of sorted keys. Whoever can guess a key can confirm it, as with any digest."""
    digest = hashlib.sha256()
    for key in keys:
        digest.update(len(key).to_bytes(4, "big"))
        digest.update(key)
    return digest.hexdigest()


def keys_frame(spark: SparkSession, keys: list[bytes]) -> DataFrame:
    """The keys as column `key`."""
    return table_frame(spark, pa.table({KEY_COLUMN: pa.array(keys, pa.binary())}))


def _text_rows(path: Path) -> Iterator[str]:
    with path.open(encoding=_ENCODING, newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            key = line.removesuffix("\n").removesuffix("\r")
            if not key:
                raise ValueError(f"line {number} is empty")
            yield key


def _csv_rows(path: Path) -> Iterator[str]:
    with path.open(encoding=_ENCODING, newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        if list(reader.fieldnames or ()).count(KEY_COLUMN) != 1:
            raise ValueError(f"not one column {KEY_COLUMN}, the columns are {reader.fieldnames}")
        for number, row in enumerate(reader, 1):
            key = row[KEY_COLUMN]
            if key is None or None in row:
                raise ValueError(f"row {number} has another number of fields than the header")
            yield key


def _json_rows(path: Path) -> Iterator[str]:
    with path.open(encoding=_ENCODING) as lines:
        for number, line in enumerate(lines, 1):
            row = json.loads(line)
            match row:
                case {"key": str(key)}:
                    yield key
                case _:
                    raise ValueError(f"line {number} is no object with a text as {KEY_COLUMN}")


def _parquet_rows(path: Path) -> Iterator[str | bytes]:
    with parquet.ParquetFile(path) as file:
        if KEY_COLUMN not in file.schema_arrow.names:
            raise ValueError(f"no column {KEY_COLUMN}")
        kind = file.schema_arrow.field(KEY_COLUMN).type
        if kind not in (*_BINARY, *_TEXT):
            raise ValueError(f"the column {KEY_COLUMN} is {kind}, neither text nor binary")
        for batch in file.iter_batches(columns=[KEY_COLUMN]):
            if batch.column(0).null_count:
                raise ValueError(f"a row has no {KEY_COLUMN}")
            keys: list[Any] = batch.column(0).to_pylist()
            yield from keys


def _hex(text: str) -> bytes:
    # bytes.fromhex skips spaces.
    return binascii.unhexlify(text)


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    "text": _text_rows,
    "csv": _csv_rows,
    "json": _json_rows,
    "parquet": _parquet_rows,
}
_DECODERS: dict[str, Callable[[str], bytes]] = {"text": str.encode, "hex": _hex, "base64": _base64}
