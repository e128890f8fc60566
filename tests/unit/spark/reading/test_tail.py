"""The tail gives the rows that the bucket gives, whatever the records are.

The oracle of rows is a model.
"""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from isotherm.errors import CorruptObjectError, InvalidTimestampError, OffsetOutOfRangeError
from isotherm.record.batch import (
    CompressionType,
    NewRecord,
    TimestampType,
    build_batch,
    read_batch_header,
)
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.plan.planning import BrokerRead, ReadTask, SegmentRead
from isotherm.spark.reading import consumed_tail, tail
from isotherm.spark.reading.readers import ReadSettings
from isotherm.spark.reading.task_reading import WhenMissing, read_task
from isotherm.spark.row_schema import arrow_schema, full_schema
from isotherm.spark.tables.table_rows import SOURCE_SCHEMA
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition
from tests.support.raw_header_names import RawName
from tests.support.record_segments import RecordSegmentMaker
from tests.support.scripted_peer import ScriptedPeer

BROKER = {"path": "s3://b", "subscribe": "a", "kafka.bootstrap.servers": "h:9092"}
OWNER = TopicIdPartition(uuid.UUID(int=9), "a", 0)
PLACE = OWNER.topic_partition
OF_TABLES = arrow_schema(SOURCE_SCHEMA)
ROWS = arrow_schema(full_schema(include_headers=True))
APPENDED_MS = 1_800_000_000_000


class Transaction(NamedTuple):
    """An aborted transaction, as a leader's transaction index has it."""

    producer_id: int
    first_offset: int
    marker_offset: int


class Leader:
    """The leader of the partition. Each answer has up to `per_answer` batches."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.aborted: Sequence[Transaction] = ()
        self.per_answer = 100
        self.error = ErrorCode.none
        self.peer = ScriptedPeer(self._answer)

    def _answer(self, request: Any) -> dict[str, Any]:
        if not hasattr(request, "max_wait"):
            host, port = self.peer.address
            partition = {"partition_index": 0, "leader_id": 1}
            return {
                "brokers": [{"node_id": 1, "host": host, "port": port}],
                "topics": [{"name": "a", "partitions": [partition]}],
            }
        offset = request.topics[0].partitions[0].fetch_offset
        later = [batch for batch in self.batches if read_batch_header(batch).last_offset >= offset]
        sent = later[: self.per_answer]
        end = read_batch_header(sent[-1]).last_offset if sent else offset
        named = [each for each in self.aborted if each.marker_offset >= offset]
        partition = {
            "partition_index": 0,
            "error_code": self.error,
            "preferred_read_replica": -1,
            "records": memoryview(b"".join(sent)),
            "aborted_transactions": [
                {"producer_id": transaction.producer_id, "first_offset": transaction.first_offset}
                for transaction in named
                if transaction.first_offset <= end and request.isolation_level
            ],
        }
        return {"responses": [{"topic": "a", "partitions": [partition]}]}

    def read(
        self,
        start: int,
        end: int,
        schema: pa.Schema = OF_TABLES,
        *,
        isolation: str = "read_uncommitted",
        batch_bytes: int = 1024,
        fail_on_data_loss: bool = True,
    ) -> list[dict[str, Any]]:
        host, port = self.peer.address
        given = {"bootstrap.servers": f"{host}:{port}"}
        batches = tail.read_tail(
            BrokerRead(PLACE, start, end),
            tail.consumer_properties(given, "g", isolation),
            schema,
            clock=SimClock(auto_advance=True),
            batch_bytes=batch_bytes,
            poll_timeout_ms=1000,
            fail_on_data_loss=fail_on_data_loss,
        )
        return [row for batch in batches for row in rows_of(batch)]


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows, with times as numbers: Python's own type has fewer years."""
    batch.validate(full=True)
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()


@pytest.fixture(scope="module")
def leader() -> Iterator[Leader]:
    running = Leader()
    yield running
    running.peer.stop()


@pytest.fixture(autouse=True)
def _reset(leader: Leader) -> None:
    leader.error, leader.aborted, leader.per_answer = ErrorCode.none, (), 100


# ---- Odd records

names = st.binary(max_size=4) | st.sampled_from([b"", b"a\0b", b"\xff\xfe", b"\xed\xa0\x80"])
texts = st.none() | st.binary(max_size=9)
# Two times of one batch differ by less than 2**63: a delta is a long.
times = st.sampled_from([-1, 0, 1, -(10**12), 10**12, 2**53, 2**62, -(2**61)]) | st.integers(
    0, 2**41
)
records = st.builds(
    lambda time, key, value, headers: NewRecord(
        time, key, value, tuple((RawName(name), held) for name, held in headers)
    ),
    times,
    texts,
    texts,
    st.lists(st.tuples(names, texts), max_size=3),
)


class Batch(NamedTuple):
    records: list[NewRecord]
    codec: CompressionType
    is_appended: bool

    def built(self, base_offset: int) -> bytes:
        kind = TimestampType.LOG_APPEND_TIME if self.is_appended else TimestampType.CREATE_TIME
        return bytes(
            build_batch(
                self.records,
                base_offset=base_offset,
                compression=self.codec,
                timestamp_type=kind,
                max_timestamp=APPENDED_MS if self.is_appended else None,
                partition_leader_epoch=0,
            )
        )

    def rows(self, base_offset: int) -> list[dict[str, Any]]:
        """The oracle: what Spark's Kafka source makes of these records."""
        return [
            {
                "key": record.key,
                "value": record.value,
                "topic": "a",
                "partition": 0,
                "offset": base_offset + number,
                "timestamp": APPENDED_MS if self.is_appended else record.timestamp_ms,
                "timestampType": int(self.is_appended),
                "headers": [
                    {"key": name.encode().decode("utf-8", "replace"), "value": held}
                    for name, held in record.headers
                ]
                or None,
            }
            for number, record in enumerate(self.records)
        ]


batches = st.builds(
    Batch,
    st.lists(records, min_size=1, max_size=4),
    st.sampled_from(list(CompressionType)),
    st.booleans(),
)


def bucket_rows(made: Sequence[bytes], start: int, end: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bucket").mkdir()
        store = ObjectStoreSettings(url=(folder / "bucket").as_uri())
        storage = ObjectStoreRemoteStorageManager(store)
        segment = RecordSegmentMaker(folder / "made", storage).tier(OWNER, made)
        read = read_task(
            ReadTask((SegmentRead(segment, start, end),)),
            storage,
            OF_TABLES,
            settings=ReadSettings(),
            read_tail=lambda read: pytest.fail(f"there is no tail {read}"),
            when_missing=WhenMissing(read_again=lambda read: None),
        )
        return [row for batch in read for row in rows_of(batch)]


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(batches, min_size=1, max_size=5), st.data())
def test_records_have_the_same_rows_in_both_tiers(
    leader: Leader, drawn: list[Batch], data: st.DataObject
) -> None:
    made, expected, end = [], [], 0
    for each in drawn:
        made.append(each.built(end))
        expected += each.rows(end)
        end += len(each.records)
    start = data.draw(st.integers(0, end - 1), label="start")
    stop = data.draw(st.integers(start + 1, end), label="end")
    leader.batches, leader.per_answer = made, data.draw(st.integers(1, 5), label="per answer")
    expected = [row for row in expected if start <= row["offset"] < stop]
    assert leader.read(start, stop, batch_bytes=data.draw(st.sampled_from([1, 10**6]))) == expected
    assert bucket_rows(made, start, stop) == expected


def test_header_names_are_whole_and_replaced_where_they_are_not_utf8(leader: Leader) -> None:
    """librdkafka's client raises for the first, and ends the second at its NUL."""
    headers = [(RawName(b"h\xff\xfe"), b"1"), (RawName(b"a\0b"), b"2"), (RawName(b""), None)]
    leader.batches = [bytes(build_batch([NewRecord(0, None, b"v", headers)]))]
    (row,) = leader.read(0, 1, ROWS)
    assert [(each["key"], each["value"]) for each in row["headers"]] == [
        ("h\ufffd\ufffd", b"1"),
        ("a\0b", b"2"),
        ("", None),
    ]


def test_many_headers_and_a_value_larger_than_a_batch_of_rows(leader: Leader) -> None:
    headers = [(f"h{number}", b"%d" % number) for number in range(5000)]
    value = b"v" * 3_000_000
    leader.batches = [bytes(build_batch([NewRecord(0, b"", value, headers)]))]
    (row,) = leader.read(0, 1)
    assert (row["key"], row["value"], len(row["headers"])) == (b"", value, 5000)


def test_time_that_a_row_cannot_hold_names_the_record(leader: Leader) -> None:
    leader.batches = [bytes(build_batch([NewRecord(1, None, b"v"), NewRecord(2**62, None, b"v")]))]
    with pytest.raises(InvalidTimestampError, match="topic a partition 0 offset 1 has timestamp"):
        leader.read(0, 2, ROWS)


# ---- Transactions


def log_of(
    steps: Sequence[tuple[int, str, int]],
) -> tuple[list[bytes], list[Transaction], set[int]]:
    """A log of (producer, write | commit | abort, records) steps: its batches, its aborted
    transactions, and the offsets of records that read_committed gives. What is open at the end is
    aborted."""
    made: list[bytes] = []
    aborted: list[Transaction] = []
    committed: set[int] = set()
    begun: dict[int, int] = {}
    written: dict[int, set[int]] = {1: set(), 2: set()}
    end = 0
    closing = [(producer, "abort", 1) for producer in written]
    for producer, act, count in [*steps, *closing]:
        if act == "write":
            made.append(
                bytes(
                    build_batch(
                        [NewRecord(0, b"k", b"v%d" % (end + number)) for number in range(count)],
                        base_offset=end,
                        producer_id=producer,
                        producer_epoch=0,
                        base_sequence=0,
                        is_transactional=True,
                    )
                )
            )
            begun.setdefault(producer, end)
            written[producer] |= set(range(end, end + count))
            end += count
            continue
        if producer not in begun:
            continue
        kind = ControlRecordType.COMMIT if act == "commit" else ControlRecordType.ABORT
        made.append(
            bytes(
                build_end_transaction_marker(
                    kind,
                    producer_id=producer,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    timestamp_ms=0,
                    base_offset=end,
                )
            )
        )
        if act == "commit":
            committed |= written[producer]
        else:
            aborted.append(Transaction(producer, begun[producer], end))
        written[producer] = set()
        del begun[producer]
        end += 1
    return made, aborted, committed


steps = st.lists(
    st.tuples(
        st.sampled_from([1, 2]),
        st.sampled_from(["write", "write", "commit", "abort"]),
        st.integers(1, 3),
    ),
    min_size=6,
    max_size=20,
)


@pytest.mark.slow
@given(steps, st.integers(1, 6), st.sampled_from([1, 10**6]), st.data())
def test_records_of_aborted_transactions_are_left_out(
    leader: Leader,
    drawn: list[tuple[int, str, int]],
    per_answer: int,
    batch_bytes: int,
    data: st.DataObject,
) -> None:
    made, aborted, committed = log_of([*drawn, (1, "write", 1)])
    end = read_batch_header(made[-1]).next_offset
    start = data.draw(st.integers(0, end - 1), label="start")
    leader.batches, leader.aborted, leader.per_answer = made, aborted, per_answer
    rows = leader.read(start, end, isolation="read_committed", batch_bytes=batch_bytes)
    assert [row["offset"] for row in rows] == sorted(each for each in committed if each >= start)


def test_aborted_transaction_ends_at_its_marker_also_in_the_next_piece(leader: Leader) -> None:
    """An answer is decoded in pieces: what a producer commits later must not be lost."""
    made, leader.aborted, _ = log_of(
        [
            *[(1, "write", 1), (1, "abort", 1)],
            # The first piece ends here, before what the same producer commits.
            *[(2, "write", 1), (2, "commit", 1)],
            *[(1, "write", 2), (1, "commit", 1)],
        ]
    )
    leader.batches = made
    rows = leader.read(0, 7, isolation="read_committed", batch_bytes=1)
    assert [row["offset"] for row in rows] == [2, 4, 5]
    # Markers are no rows, whatever the isolation.
    assert [row["offset"] for row in leader.read(0, 7)] == [0, 2, 4, 5]


# ---- Losses, and properties

Fault = Callable[[Leader], None]


def _lost(leader: Leader) -> None:
    leader.error = ErrorCode.offset_out_of_range


def _damaged(leader: Leader) -> None:
    leader.batches[0] = leader.batches[0].replace(b"value", b"valux")


@pytest.mark.parametrize(
    ("fault", "error"), [(_lost, OffsetOutOfRangeError), (_damaged, CorruptObjectError)]
)
def test_what_is_lost_or_damaged_ends_a_query_or_is_a_warning(
    leader: Leader, fault: Fault, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    leader.batches = [bytes(build_batch([NewRecord(0, None, b"value")]))]
    fault(leader)
    with pytest.raises(error, match="topic=a partition=0"):
        leader.read(0, 1)
    with caplog.at_level(logging.WARNING):
        assert leader.read(0, 1, fail_on_data_loss=False) == []
    assert "failOnDataLoss=false" in caplog.text


@pytest.mark.parametrize(
    ("given", "group"),
    [({}, "isotherm-relation"), ({"groupIdPrefix": "g"}, "g"), ({"kafka.group.id": "own"}, "own")],
)
def test_consumers_have_the_group_id_that_is_asked_for_and_commit_nothing(
    given: dict[str, str], group: str
) -> None:
    options = parse_options(BROKER | given)
    properties = tail.consumer_properties(
        options.kafka_properties, options.group_id_prefix, options.isolation
    )
    assert properties["group.id"] == group
    assert properties["enable.auto.commit"] is False
    assert properties["auto.offset.reset"] == "error"
    assert properties["isolation.level"] == "read_uncommitted"


def test_connection_that_only_librdkafka_makes_has_its_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = pa.record_batch([pa.array([7])], names=["offset"])
    given = {"bootstrap.servers": "h:9092", "security.protocol": "SASL_SSL"}
    kerberos = tail.consumer_properties(given | {"sasl.mechanism": "GSSAPI"}, "g", "read_committed")

    def consume(read: BrokerRead, properties: dict[str, Any], *_: object, **__: object) -> Any:
        assert (read, properties) == (BrokerRead(PLACE, 0, 1), kerberos)
        yield row
        raise OffsetOutOfRangeError("gone")

    monkeypatch.setattr(consumed_tail, "consume_tail", consume)
    rows = tail.read_tail(
        BrokerRead(PLACE, 0, 1),
        kerberos,
        OF_TABLES,
        clock=SimClock(),
        batch_bytes=1,
        poll_timeout_ms=1,
        fail_on_data_loss=False,
    )
    assert list(rows) == [row]
