"""The group records against `__consumer_offsets` as Kafka wrote it, and as Kafka prints it."""

from __future__ import annotations

import json

from isotherm.broker.coordinators.groups.group_records import (
    decode_record,
    encode_key,
    encode_value,
)
from isotherm.record.batch import iterate_batches, read_records
from isotherm.types import uuid_to_text

DIRECTORY = "__consumer_offsets-0"


def test_offset_commits_hold_what_kafka_prints_and_encode_to_its_bytes(golden) -> None:
    printed = {
        int(record["offset"]): record
        for file in golden.dump(DIRECTORY).values()
        for record in file.records
        if record.get("payload", "").startswith("{")
    }
    seen = 0
    for path in sorted((golden.log_dir / DIRECTORY).glob("*.log")):
        data = path.read_bytes()
        for position, header in iterate_batches(data):
            for record in read_records(data, position, header):
                decoded = decode_record(record.key, record.value)
                assert encode_key(decoded.key) == record.key
                assert encode_value(decoded.value) == record.value
                key = json.loads(printed[record.offset]["key"])["data"]
                value = json.loads(printed[record.offset]["payload"])["data"]
                assert key == {
                    "group": decoded.key.group,
                    "topic": decoded.key.topic,
                    "partition": decoded.key.partition,
                }
                assert value == {
                    "offset": decoded.value.offset,
                    "leaderEpoch": decoded.value.leader_epoch,
                    "metadata": decoded.value.metadata,
                    "commitTimestamp": decoded.value.commit_timestamp,
                    "topicId": uuid_to_text(decoded.value.topic_id),
                }
                seen += 1
    assert seen == len(printed) > 0
