"""The controller's record formats against `__cluster_metadata` as Kafka's controller wrote it."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterator

import pytest

from isotherm.broker.metadata.metadata_records import MetadataRecord, decode_record
from isotherm.protocol.framed_messages import encode_framed
from isotherm.record.batch import iterate_batches, read_records
from isotherm.types import uuid_to_text

DIRECTORY = "__cluster_metadata-0"


@pytest.fixture(scope="module")
def values(golden) -> dict[int, bytes]:
    """Record values by offset."""
    return {
        record.offset: record.value
        for path in sorted((golden.log_dir / DIRECTORY).glob("*.log"))
        for data in [path.read_bytes()]
        for position, header in iterate_batches(data)
        if not header.is_control
        for record in read_records(data, position, header)
    }


@pytest.fixture(scope="module")
def printed(golden) -> dict[int, dict]:
    """Kafka's printed form of each record, by offset."""
    return {
        int(record["offset"]): json.loads(record["payload"])
        for file in golden.dump(DIRECTORY).values()
        for record in file.records
        if record.get("payload", "").startswith("{")
    }


def test_records_hold_what_kafka_prints(values, printed) -> None:
    assert values.keys() == printed.keys()
    for offset, value in values.items():
        fields = dict(_json_fields(decode_record(value)))
        # Kafka leaves out tagged fields that have their default.
        assert {name: fields[name] for name in printed[offset]["data"]} == printed[offset]["data"]


def test_records_of_the_newest_version_encode_to_the_bytes_that_kafka_wrote(
    values, printed
) -> None:
    same = 0
    for offset, value in values.items():
        record = decode_record(value)
        if record.__version__ == printed[offset]["version"]:
            assert encode_framed(record) == value
            same += 1
    assert same > 100


def _json_fields(record: MetadataRecord) -> Iterator[tuple[str, object]]:
    for field in dataclasses.fields(record):
        yield _camel_case(field.name), _json_value(getattr(record, field.name))


def _json_value(value: object) -> object:
    if isinstance(value, uuid.UUID):
        return uuid_to_text(value)
    if isinstance(value, tuple):
        return [_json_value(element) for element in value]
    if dataclasses.is_dataclass(value):
        return dict(_json_fields(value))
    return value


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
