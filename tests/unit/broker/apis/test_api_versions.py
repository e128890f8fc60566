from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_versions import unsupported_version_response
from isotherm.broker.dispatch.api_register import SERVED
from isotherm.protocol.api_keys import ApiKey

CLIENT = {"client_software_name": "test-client", "client_software_version": "1.0.0"}


@pytest.mark.parametrize("version", range(5))
def test_table_holds_every_served_api_and_produce_from_version_0(broker, version):
    response = broker.call(ApiKey.API_VERSIONS, version, **CLIENT)
    assert response.error_code is ErrorCode.none
    table = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert table == {int(key): tuple(versions) for key, versions in SERVED.items()} | {0: (0, 13)}


def test_features_are_those_of_the_metadata_log(broker):
    response = broker.call(ApiKey.API_VERSIONS, 3, **CLIENT)
    supported = {
        each.name: (each.min_version, each.max_version) for each in response.supported_features
    }
    finalized = {each.name: each.max_version_level for each in response.finalized_features}
    assert supported == {"metadata.version": (7, 30)}
    assert finalized == {
        "metadata.version": 30,
        "group.version": 1,
        "transaction.version": 2,
        "remote.log.metadata.compaction": 1,
    }
    assert response.finalized_features_epoch == broker.controller.image.end_offset - 1


def test_features_with_a_level_0_are_shown_from_version_4_on(broker):
    response = broker.call(ApiKey.API_VERSIONS, 4, **CLIENT)
    supported = {
        each.name: (each.min_version, each.max_version) for each in response.supported_features
    }
    assert supported == {
        "metadata.version": (7, 30),
        "group.version": (0, 1),
        "transaction.version": (0, 2),
        "remote.log.metadata.compaction": (0, 1),
    }


@pytest.mark.parametrize("name", ["", "-x", "x-", "a b", "ü"])
def test_client_software_name_outside_the_pattern_is_an_invalid_request(broker, name):
    response = broker.call(ApiKey.API_VERSIONS, 3, **{**CLIENT, "client_software_name": name})
    assert response.error_code is ErrorCode.invalid_request


def test_unknown_version_is_answered_in_version_0_with_the_table(broker):
    response = broker.as_client_sees_it(ApiKey.API_VERSIONS, 0, unsupported_version_response())
    assert response.error_code is ErrorCode.unsupported_version
    assert (18, 0, 4) in [(a.api_key, a.min_version, a.max_version) for a in response.api_keys]
