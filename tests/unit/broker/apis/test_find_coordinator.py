from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from isotherm.protocol.api_keys import ApiKey


@pytest.mark.parametrize("version", range(4))
def test_this_broker_coordinates_one_key(broker, version):
    response = broker.call(ApiKey.FIND_COORDINATOR, version, key="group", key_type=0)
    assert (response.error_code, response.node_id, response.host, response.port) == (
        ErrorCode.none,
        1,
        "broker.example",
        9092,
    )


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("key_type", [0, 1])
def test_this_broker_coordinates_every_key_of_a_batch(broker, version, key_type):
    response = broker.call(
        ApiKey.FIND_COORDINATOR,
        version,
        coordinator_keys=("a", "b"),
        key_type=key_type,
        listener="INTERNAL",
    )
    assert [(c.key, c.error_code, c.node_id, c.host, c.port) for c in response.coordinators] == [
        ("a", ErrorCode.none, 1, "10.0.0.1", 19092),
        ("b", ErrorCode.none, 1, "10.0.0.1", 19092),
    ]


@pytest.mark.parametrize("key_type", [2, 9, -1])
def test_unknown_key_type_is_an_invalid_request(broker, key_type):
    one = broker.call(ApiKey.FIND_COORDINATOR, 3, key="a", key_type=key_type)
    many = broker.call(ApiKey.FIND_COORDINATOR, 6, coordinator_keys=("a",), key_type=key_type)
    assert one.error_code is ErrorCode.invalid_request
    assert (one.node_id, one.host, one.port) == (-1, "", -1)
    assert many.coordinators[0].error_code is ErrorCode.invalid_request


def test_coordinator_is_not_available_by_a_listener_that_is_not_advertised(broker):
    response = broker.call(
        ApiKey.FIND_COORDINATOR, 6, coordinator_keys=("a",), key_type=0, listener="HIDDEN"
    )
    (answer,) = response.coordinators
    assert answer.error_code is ErrorCode.coordinator_not_available
    assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)
