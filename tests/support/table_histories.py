"""Random topics that become tables, with the tables expected from a consumer's records.

Each partition is a log with batches of every codec, committed and aborted transactions, odd keys,
headers and times, and batches that the cleaner has filtered. Closed segments are copied to a
bucket, more of them before each run. A broker can get the logs, and then also has the tail. The
expected values come from Python's json, fastavro and the fields' types below, record by record.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import fastavro

from isotherm.config.topic import TopicConfig
from isotherm.log.checkpoints import save_partition_metadata
from isotherm.log.fs import OsFileSystem
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import (
    CompressionType,
    NewRecord,
    TimestampType,
    build_batch,
)
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.tasks.copy import segment_data
from isotherm.remote.tasks.copy_plan import CandidateSegment
from isotherm.segment.file_names import CLEAN_SHUTDOWN_NAME
from isotherm.types import Offset, ProducerId, TopicIdPartition, TopicPartition
from tests.support.filtered_batch import filtered_batch
from tests.support.local_log import open_local_log
from tests.support.model_history import describe_segment

Row: TypeAlias = dict[str, Any]

FORMATS = ("raw", "string", "json", "avro")
START_MS = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_9999_MS = 253_402_300_799_999
_ODD_TIMES = (-1, 0, _YEAR_9999_MS, 2**60)
# Microseconds in 64 bits, up to what Python's datetime can show.
_TIMES_OF_TABLES = range(-(10**12), _YEAR_9999_MS + 1)
_TOPIC_ID = uuid.UUID(int=0x7AB)
_PRODUCERS = (11, 12)
_GENERATIONS = 4

DEAD = object()
"""The expected result for a key or value that cannot be decoded."""


def _avro_schema(generation: int) -> dict[str, Any]:
    """The Avro schema of a generation. Each has more fields, and `n` grows from int to long."""
    fields: list[Any] = [
        {"name": "n", "type": "int" if generation < 2 else "long"},
        {"name": "s", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "double"}, "default": []},
        {"name": "at", "type": {"type": "record", "name": f"At{generation}", "fields": [
            {"name": "city", "type": "string"},
            *({"name": f"x{n}", "type": "boolean"} for n in range(generation)),
        ]}},
    ]  # fmt: skip
    fields += [{"name": f"e{n}", "type": ["null", "float"]} for n in range(generation)]
    return {"type": "record", "name": f"Event{generation}", "fields": fields}


# Registry id -> schema: one for each generation, then one that fits no column.
SCHEMAS = {100 + generation: _avro_schema(generation) for generation in range(_GENERATIONS)}
_MISFIT_ID, _UNKNOWN_ID = 200, 300
SCHEMAS[_MISFIT_ID] = {
    "type": "record", "name": "Misfit", "fields": [{"name": "n", "type": "string"}]
}  # fmt: skip
_PARSED = {number: fastavro.parse_schema(schema) for number, schema in SCHEMAS.items()}


_ICEBERG_NAMES = {
    "prices": "kafka.prices",
    "a.b-c_D.9": "kafka.a_b-c_d_9",
    "x" * 100: f"kafka.{'x' * 100}",
}


@contextmanager
def serve_schemas(answers: Mapping[int, Mapping[str, str]] | None = None) -> Iterator[str]:
    """Serve schemas by their ids, SCHEMAS by default, with the part of Confluent's API that readers
    and writers need; yield the URL. An answer with a `subject` is its newest version, too. Refuses
    all else.
    """
    served = answers or {
        number: {"schema": json.dumps(schema)} for number, schema in SCHEMAS.items()
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, answer = 404, json.dumps({"error_code": 40403, "message": "Schema not found"})
            path = self.path.partition("?")[0]
            if path == "/subjects":
                status, answer = 200, "[]"
            elif path.startswith("/schemas/ids/"):
                found = served.get(int(path.rpartition("/")[2]))
                if found is not None:
                    status, answer = 200, json.dumps(found)
            elif path.startswith("/subjects/"):
                for number, each in served.items():
                    if path == f"/subjects/{each.get('subject')}/versions/latest":
                        status, answer = 200, json.dumps({**each, "id": number, "version": 1})
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, name="schemas")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True, slots=True)
class Stored:
    """A record of the topic, as a consumer gets it."""

    partition: int
    offset: Offset
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class TableShape:
    """The settings of a random topic and its table."""

    topic: str
    to: str
    key_format: str
    value_format: str
    partitions: int
    runs: int
    with_transactions: bool
    with_gaps: bool
    records_per_task: int | None

    @property
    def iceberg_name(self) -> str:
        return _ICEBERG_NAMES[self.topic]

    @classmethod
    def of(cls, seed: int) -> TableShape:
        """The shape of a seed.

        Formats of table and values rotate, so that few seeds cover all of them.
        """
        rng = random.Random(f"shape-{seed}")
        return cls(
            topic=rng.choice([*_ICEBERG_NAMES]),
            to=("iceberg", "parquet")[seed % 2],
            key_format=rng.choice(("raw", "string")),
            value_format=FORMATS[seed // 2 % len(FORMATS)],
            partitions=rng.randint(1, 3),
            runs=rng.randint(1, 4),
            with_transactions=rng.random() < 0.7,
            with_gaps=rng.random() < 0.4,
            records_per_task=rng.choice((None, 70)),
        )


class Content:
    """Random keys, values and headers of one format.

    If `first` is the first record, the dead letters do not depend on the order of the others."""

    def __init__(self, rng: random.Random, shape: TableShape) -> None:
        self._rng = rng
        self._shape = shape
        self.generation = 0

    def first(self) -> NewRecord:
        """A value with every field of the first generation, each of its type."""
        value = {
            "raw": b"one",
            "string": b"one",
            "json": json.dumps(
                {"n": 1, "eur": 0.5, "s": "x", "is": True, "at": {"city": "x"}, "tags": [["x"]],
                 "lines": [{"sku": "a"}]}
            ).encode(),
            "avro": self._avro(100),
        }[self._shape.value_format]  # fmt: skip
        return NewRecord(START_MS, b"first", value)

    def record(self, number: int) -> NewRecord:
        rng = self._rng
        time = START_MS + 1000 * number - rng.choice((0, 0, 5000))
        return NewRecord(
            rng.choice(_ODD_TIMES) if rng.random() < 0.04 else time,
            rng.choice([None, b"", b"k%d" % (number % 7), "schlüssel €".encode(), b"\xff\xfe"]),
            self._value(),
            self._headers(),
        )

    def _headers(self) -> tuple[tuple[str, bytes | None], ...]:
        if self._rng.random() < 0.6:
            return ()
        values = [None, b"", b"\0\xff", b"text"]
        names = ["a", "a", "", "ü", "long-name" * 9]
        count = self._rng.randint(1, 4)
        return tuple((self._rng.choice(names), self._rng.choice(values)) for _ in range(count))

    def _value(self) -> bytes | None:
        if self._rng.random() < 0.08:
            return None
        make: dict[str, Callable[[], bytes]] = {
            "raw": lambda: self._rng.randbytes(self._rng.choice((0, 1, 40, 3000))),
            "string": self._text,
            "json": self._json,
            "avro": self._any_avro,
        }
        return make[self._shape.value_format]()

    def _text(self) -> bytes:
        text = self._rng.choice(["", "plain", "naïve €", "\0", "𝄞" * 50, "line\nfeed"])
        encoded = text.encode()
        return self._rng.choice((encoded, encoded, b"\xff" + encoded, b"\xed\xa0\x80"))

    def _json(self) -> bytes:
        rng = self._rng
        bad = [b"", b"{", b"17", b"\xff", b'{"n": "text"}', b'{"at": 5}', b'{"tags": [1]}',
               b'{"lines": [{"sku": 1}]}', b'{"n": 1} {"n": 2}', b'{"is": 0}', b'{"a.b": 1}',
               b'{"n": 1, "n": 2}']  # fmt: skip
        if self.generation:
            # Before the first commit the column would become a double for them.
            bad += [b'{"n": 1.5}', b'{"n": 9223372036854775808}']
        if rng.random() < 0.1:
            return rng.choice(bad)
        if rng.random() < 0.03:
            return rng.choice((b"null", b"{}", b" { } "))
        choices: Row = {
            "n": rng.randint(-(2**63), 2**63 - 1),
            "eur": rng.choice((1, 0.25, -3e300, 10**18)),
            "s": rng.choice(("", "2020-01-01", "ü€𝄞", 'quote " and \n', "x" * 500)),
            "is": rng.random() < 0.5,
            "at": {"city": rng.choice(("Zürich", None)), **({"zip": 7} if self.generation else {})},
            "tags": [[rng.choice("abc")] * n for n in range(rng.randint(0, 3))],
            "lines": [rng.choice(({"sku": "a"}, {}, None)) for _ in range(rng.randint(0, 3))],
            "nothing": None,
        }
        choices |= {f"e{n}": rng.choice(([n, None], None)) for n in range(self.generation)}
        names = rng.sample(sorted(choices), rng.randint(1, len(choices)))
        document = {name: None if rng.random() < 0.05 else choices[name] for name in names}
        return json.dumps(document, ensure_ascii=rng.random() < 0.5).encode()

    def _any_avro(self) -> bytes:
        rng = self._rng
        good = self._avro(100 + rng.randint(0, self.generation))
        if rng.random() < 0.88:
            return good
        misfit = io.BytesIO()
        fastavro.schemaless_writer(misfit, _PARSED[_MISFIT_ID], {"n": "x"})
        return rng.choice(
            (b"", b"{}", good[:-1], good + b"!", b"\1" + good[1:], _framed(_UNKNOWN_ID, good[5:]),
             _framed(_MISFIT_ID, misfit.getvalue()))
        )  # fmt: skip

    def _avro(self, schema_id: int) -> bytes:
        rng, written = self._rng, io.BytesIO()
        generation = schema_id - 100
        value: Row = {
            "n": rng.randint(-(2**31), 2**31 - 1) * (1 if generation < 2 else 2**20),
            "s": rng.choice((None, "", "ü€𝄞")),
            "tags": [rng.choice((0.5, -1e300)) for _ in range(rng.randint(0, 3))],
            "at": {
                "city": rng.choice(("Zürich", "")),
                **{f"x{n}": True for n in range(generation)},
            },
        }
        value |= {f"e{n}": rng.choice((None, 0.5)) for n in range(generation)}
        fastavro.schemaless_writer(written, _PARSED[schema_id], value)
        return _framed(schema_id, written.getvalue())


def _framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


@dataclass
class TableHistory:
    """A topic of this shape in a bucket. `grow` makes it longer."""

    directory: Path
    seed: int
    shape: TableShape
    topic_id: uuid.UUID = _TOPIC_ID
    one_epoch: bool = False
    records: list[Stored] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._content = Content(self._rng, self.shape)
        self.bucket = self.directory / "bucket"
        self.bucket.mkdir(parents=True)
        settings = ObjectStoreSettings.from_config({"url": self.bucket.as_uri()})
        self._storage = ObjectStoreRemoteStorageManager(settings)
        self._partitions = [_Partition(self, number) for number in range(self.shape.partitions)]

    def grow(self, *, ends: bool, copies: bool = True) -> None:
        """Add some segments to each partition.

        `ends` ends all open transactions: the topic ends here. Without `copies` the segments are in
        the logs alone.
        """
        for partition in self._partitions:
            for _ in range(self._rng.randint(1, 3)):
                partition.write_segment(self._rng.randint(1, 8))
            if ends:
                partition.end_transactions()
            if copies:
                partition.copy()
        self._content.generation = min(self._content.generation + 1, _GENERATIONS - 1)

    def give_logs(self, log_dir: Path) -> None:
        """Give the logs to a stopped broker that has the topic without records; it recovers them
        as after a crash.
        """
        (log_dir / CLEAN_SHUTDOWN_NAME).unlink()
        for partition in self._partitions:
            target = log_dir / f"{self.shape.topic}-{partition.number}"
            shutil.rmtree(target)
            shutil.copytree(partition.directory, target)
            save_partition_metadata(OsFileSystem(), target, self.topic_id)

    def committed(self) -> list[Stored]:
        """The records that a read_committed consumer gets now, by partition, then offset."""
        return [record for partition in self._partitions for record in partition.committed()]


class _Partition:
    def __init__(self, history: TableHistory, number: int) -> None:
        self.number = number
        self.directory = history.directory / "local" / f"{number}" / "log"
        self._one_epoch = history.one_epoch
        self._rng, self._content = history._rng, history._content
        self._shape, self._storage = history.shape, history._storage
        config = TopicConfig(remote_storage_enable=True, index_interval_bytes=200, retention_ms=-1)
        self._owner = TopicIdPartition(history.topic_id, self._shape.topic, number)
        self._log: PartitionLog = open_local_log(
            self.directory,
            config=config,
            topic_partition=TopicPartition(self._shape.topic, number),
        )
        self._end: Offset = 0
        self._copied: Offset = 0
        self._epoch = 0
        self._records: list[Stored] = []
        self._aborted: set[Offset] = set()
        # Producer -> the first offset of its open transaction, and its records.
        self._open: dict[ProducerId, tuple[Offset, list[Offset]]] = {}
        self._sequences: dict[ProducerId, int] = {}
        if number == 0:
            self._append([self._content.first()], None)

    def committed(self) -> list[Stored]:
        stable = min((start for start, _ in self._open.values()), default=self._end)
        kept = (record for record in self._records if record.offset not in self._aborted)
        return [each for each in kept if each.offset < stable]

    def write_segment(self, batches: int) -> None:
        for _ in range(batches):
            turn = self._rng.random() if self._shape.with_transactions else 0.0
            if turn >= 0.8 and self._open:
                self._end_transaction(self._rng.choice(sorted(self._open)))
                continue
            count = self._rng.choice((1, 3, 9, 40))
            made = [self._content.record(self._end + n) for n in range(count)]
            self._append(made, self._rng.choice(_PRODUCERS) if turn >= 0.5 else None)
        self._log.roll()
        self._epoch += self._rng.choice((0, 0, 0 if self._one_epoch else 1))

    def end_transactions(self) -> None:
        for producer in sorted(self._open):
            self._end_transaction(producer)
        self._log.roll()

    def copy(self) -> None:
        for segment, after in pairwise(self._log.segments()):
            if segment.base_offset < self._copied:
                continue
            end = after.base_offset
            metadata = describe_segment(self._log, segment, end, self._owner, self._rng)
            data = segment_data(self._log, CandidateSegment(segment, end))
            self._storage.copy_log_segment_data(metadata, data)
            self._copied = end

    def _append(self, made: list[NewRecord], producer: ProducerId | None) -> None:
        start, is_logged = self._end, self._rng.random() < 0.1
        logged_ms = START_MS + 1000 * start
        written: dict[str, Any] = {
            "base_offset": start,
            "compression": self._rng.choice(list(CompressionType)),
            "partition_leader_epoch": self._epoch,
        }
        if is_logged:
            written |= {"timestamp_type": TimestampType.LOG_APPEND_TIME, "max_timestamp": logged_ms}
        if producer is not None:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + len(made)
            written |= {
                "producer_id": producer, "producer_epoch": 0, "base_sequence": sequence,
                "is_transactional": True,
            }  # fmt: skip
        batch: bytes | bytearray = build_batch(made, **written)
        places = range(len(made))
        if self._shape.with_gaps and start and self._rng.random() < 0.5:
            places = sorted(self._rng.sample(places, self._rng.randint(0, len(made))))  # type: ignore[assignment]
            horizon = START_MS if self._rng.random() < 0.3 else None
            batch = filtered_batch(batch, places, delete_horizon_ms=horizon)
        self._write(batch)
        self._end = start + len(made)
        stored = [
            Stored(
                self.number, start + place, logged_ms if is_logged else made[place].timestamp_ms,
                int(is_logged), made[place].key, made[place].value, tuple(made[place].headers),
            )
            for place in places
        ]  # fmt: skip
        self._records += stored
        if producer is not None:
            _, offsets = self._open.setdefault(producer, (start, []))
            offsets += [each.offset for each in stored]

    def _end_transaction(self, producer: ProducerId) -> None:
        is_abort = self._rng.random() < 0.5
        marker = build_end_transaction_marker(
            ControlRecordType.ABORT if is_abort else ControlRecordType.COMMIT,
            base_offset=self._end,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=START_MS,
        )
        self._write(marker)
        self._end += 1
        _, offsets = self._open.pop(producer)
        if is_abort:
            self._aborted.update(offsets)

    def _write(self, batch: bytes | bytearray) -> None:
        self._log.append_as_follower(memoryview(batch), self._epoch)
        self._log.update_high_watermark(self._log.log_end_offset)


def expected_row(record: Stored, key_format: str, value_format: str) -> tuple[Row, bool]:
    """The row of a record, and whether it is a dead letter, which has the bytes."""
    row: Row = {
        "partition": record.partition,
        "offset": record.offset,
        "timestampType": record.timestamp_type,
        "timestamp": None,
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        "key": record.key,
        "value": record.value,
    }
    is_dead = record.timestamp_ms not in _TIMES_OF_TABLES
    if not is_dead:
        row["timestamp"] = EPOCH + timedelta(milliseconds=record.timestamp_ms)
    decoded = {
        "key": decoded_as(key_format, record.key),
        "value": decoded_as(value_format, record.value),
    }
    if is_dead or DEAD in decoded.values():
        return row, True
    return row | decoded, False


def decoded_as(value_format: str, value: bytes | None) -> Any:
    if value is None or value_format == "raw":
        return value
    if value_format == "avro":
        return _avro_value(value)
    try:
        text = value.decode()
        if value_format == "string":
            return text
        document = json.loads(text, object_pairs_hook=_unique)
    except ValueError:
        return DEAD
    try:
        return _of_kind(document, _JSON)
    except _MisfitError:
        return DEAD


# The fields that Content makes: each a type, a list with its element's, or an object with its
# fields'.
_JSON: Any = {
    "n": int, "eur": float, "s": str, "is": bool, "at": {"city": str, "zip": int}, "tags": [[str]],
    "lines": [{"sku": str}], "nothing": None, **{f"e{n}": [int] for n in range(_GENERATIONS)},
}  # fmt: skip


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    if len(pairs) != len(dict(pairs)):
        raise ValueError
    return dict(pairs)


class _MisfitError(Exception):
    """The value does not fit its field."""


def _of_kind(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, dict) and isinstance(value, dict) and value.keys() <= kind.keys():
        return {name: _of_kind(inner, kind[name]) for name, inner in value.items()}
    if isinstance(kind, list) and isinstance(value, list):
        return [_of_kind(inner, kind[0]) for inner in value]
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind or (kind is int and not -(2**63) <= value < 2**63):
        raise _MisfitError
    return value


def _avro_value(value: bytes) -> Any:
    schema_id = int.from_bytes(value[1:5], "big")
    if len(value) < 5 or value[0] or schema_id not in _PARSED or schema_id == _MISFIT_ID:
        return DEAD
    read = io.BytesIO(value[5:])
    try:
        found = fastavro.schemaless_reader(read, _PARSED[schema_id], None)
    except (EOFError, ValueError, IndexError):
        return DEAD
    return DEAD if read.read() else found
