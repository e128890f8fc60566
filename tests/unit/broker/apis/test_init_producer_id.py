"""InitProducerId of idempotent producers, and requests that are refused."""

from __future__ import annotations

import datetime

import pytest
from kio.schema.errors import ErrorCode

from isotherm.protocol.api_keys import ApiKey

TIMEOUT = datetime.timedelta(seconds=1)


def init(broker, version, transactional_id=None, **fields):
    return broker.call(
        ApiKey.INIT_PRODUCER_ID,
        version,
        transactional_id=transactional_id,
        transaction_timeout=TIMEOUT,
        **fields,
    )


@pytest.mark.parametrize("version", range(6))
def test_idempotent_producer_gets_a_new_id_with_epoch_0(broker, version):
    first, second = init(broker, version), init(broker, version, producer_id=0, producer_epoch=3)
    assert (first.error_code, first.producer_epoch) == (ErrorCode.none, 0)
    assert (second.error_code, second.producer_epoch) == (ErrorCode.none, 0)
    assert second.producer_id != first.producer_id


@pytest.mark.parametrize("fields", [{"producer_id": 4}, {"producer_epoch": 4}])
def test_producer_id_without_an_epoch_is_an_invalid_request(broker, fields):
    response = init(broker, 5, "tx", **fields)
    assert response.error_code is ErrorCode.invalid_request
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("transactional_id", ["", "ü" * 16_384])
def test_transactional_id_that_is_empty_or_too_long_is_an_invalid_request(broker, transactional_id):
    assert init(broker, 5, transactional_id).error_code is ErrorCode.invalid_request
