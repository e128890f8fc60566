"""Control batches that hold no control record are found; those that brokers write are not."""

from __future__ import annotations

import pytest

from isotherm.record.batch import NewRecord, build_batch
from isotherm.record.batch_table import read_batch_table
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.control_table import without_control_record


def control_batch(*records: NewRecord) -> bytearray:
    return build_batch(list(records), is_control=True)


def is_wrong(batch: bytearray) -> bool:
    table, _ = read_batch_table(bytes(batch))
    assert len(table) == 1
    return bool(without_control_record(bytes(batch), table)[0])


@pytest.mark.parametrize("marker", [ControlRecordType.ABORT, ControlRecordType.COMMIT])
def test_marker_of_a_transaction_is_a_control_record(marker: ControlRecordType) -> None:
    batch = build_end_transaction_marker(
        marker, producer_id=7, producer_epoch=0, coordinator_epoch=3, timestamp_ms=1_000
    )
    assert not is_wrong(batch)


def test_control_record_of_another_size_and_known_type_is_one() -> None:
    leader_change = NewRecord(1_000, b"\x00\x00\x00\x02", b"a longer value")
    assert not is_wrong(control_batch(leader_change))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"user-7", b"value"),
        (b"abcd", b"sixsix"),  # a key and value of a marker's sizes
        (None, b"value"),
        (b"\x00\x00\x00\x63", b"value"),
    ],
)
def test_data_under_the_control_bit_is_found(key: bytes | None, value: bytes) -> None:
    assert is_wrong(control_batch(NewRecord(1_000, key, value)))


def test_several_records_are_no_marker() -> None:
    marker = NewRecord(1_000, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")
    assert is_wrong(control_batch(marker, marker))


def test_data_without_the_bit_is_left_alone() -> None:
    assert not is_wrong(build_batch([NewRecord(1_000, b"key", b"value")]))
