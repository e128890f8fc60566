"""The register of APIs: Kafka's keys and names, and consistent rows."""

from __future__ import annotations

import re

from kio.index import api_key_map, load_request_schema

from isotherm.broker.apis.api_register import APIS, SERVED, served_table
from isotherm.protocol.api_keys import ApiKey, api_name


def test_rows_are_named_as_kafka_names_them_and_ordered_by_key():
    table = served_table()
    assert [key for key, _, _ in table] == sorted(SERVED)
    for key, name, _ in table:
        assert load_request_schema(key, SERVED[key].max).__name__ == f"{name}Request"


def test_versions_are_a_range_or_one():
    versions = {name: text for _, name, text in served_table()}
    assert versions["Produce"] == "3-13"
    assert versions["DescribeTopicPartitions"] == "0"


def test_apis_are_registered_under_the_keys_that_they_declare():
    assert all(key == api.key for key, api in APIS.items())


def test_every_api_of_kafka_has_its_key_and_name():
    names = {int(key): re.sub("(?<!^)(?=[A-Z])", "_", api_name(key)).lower() for key in ApiKey}
    assert names == api_key_map
