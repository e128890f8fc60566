"""The transaction coordinator's record formats against `__transaction_state` as Kafka wrote it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest

from isotherm.broker.coordinators.transactions.transaction_records import (
    decode_record,
    encode_key,
    encode_value,
)
from isotherm.broker.coordinators.transactions.transaction_snapshot import (
    transaction_of_value,
    transaction_value,
)
from isotherm.record.batch import Record, iterate_batches, read_records

DIRECTORY = "__transaction_state-0"


@pytest.fixture(scope="module")
def records(golden) -> dict[int, Record]:
    return {
        record.offset: record
        for path in sorted((golden.log_dir / DIRECTORY).glob("*.log"))
        for data in [path.read_bytes()]
        for position, header in iterate_batches(data)
        for record in read_records(data, position, header)
    }


@pytest.fixture(scope="module")
def printed(golden) -> dict[int, tuple[dict, dict]]:
    """Key and value as Kafka prints them, by offset."""
    return {
        int(record["offset"]): (json.loads(record["key"]), json.loads(record["payload"]))
        for file in golden.dump(DIRECTORY).values()
        for record in file.records
        if record.get("payload", "").startswith("{")
    }


def test_records_hold_what_kafka_prints(records, printed) -> None:
    assert records.keys() == printed.keys()
    assert len(records) > 100
    for offset, record in records.items():
        decoded = decode_record(record.key, record.value)
        key, value = printed[offset]
        assert decoded.key.transactional_id == key["data"]["transactionalId"]
        assert decoded.value.__version__ == int(value["version"])
        fields = dict(_json_fields(decoded.value))
        # Kafka leaves out tagged fields that have their default.
        assert {name: fields[name] for name in value["data"]} == value["data"]


def test_records_encode_to_the_bytes_that_kafka_wrote(records) -> None:
    for record in records.values():
        decoded = decode_record(record.key, record.value)
        assert encode_key(decoded.key.transactional_id) == record.key
        assert encode_value(decoded.value) == record.value


def test_state_of_a_record_is_stored_as_kafka_stored_it(records) -> None:
    for record in records.values():
        key, value = decode_record(record.key, record.value)
        metadata = transaction_of_value(key.transactional_id, value)
        assert encode_value(transaction_value(metadata)) == record.value


def _json_fields(record: object) -> Iterator[tuple[str, object]]:
    for field in dataclasses.fields(record):
        yield _camel_case(field.name), _json_value(getattr(record, field.name))


def _json_value(value: object) -> object:
    if isinstance(value, tuple):
        return [_json_value(element) for element in value]
    if dataclasses.is_dataclass(value):
        return dict(_json_fields(value))
    return value


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
