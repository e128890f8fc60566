from __future__ import annotations

from kio.index import load_request_schema

from isotherm.protocol.api_versions import SERVED
from isotherm.protocol.served_table import served_table


def test_rows_are_named_as_kafka_names_them_and_ordered_by_key():
    table = served_table()
    assert [key for key, _, _ in table] == sorted(SERVED)
    for key, name, _ in table:
        assert load_request_schema(key, SERVED[key].max).__name__ == f"{name}Request"


def test_versions_are_a_range_or_one():
    versions = {name: text for _, name, text in served_table()}
    assert versions["Produce"] == "3-13"
    assert versions["DescribeTopicPartitions"] == "0"
