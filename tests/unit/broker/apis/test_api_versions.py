"""ApiVersions: the APIs and features that each version of the response lists."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import APIS, SERVED
from isotherm.broker.apis.api_versions import declare
from isotherm.broker.metadata.features import SupportedLevels
from isotherm.protocol.api_keys import ApiKey, VersionRange, request_class
from isotherm.protocol.entities import entity_of

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
        feature.name: (feature.min_version, feature.max_version)
        for feature in response.supported_features
    }
    finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
    assert supported == {"metadata.version": (7, 30)}
    assert finalized == {
        "metadata.version": 30,
        "group.version": 1,
        "transaction.version": 2,
        "eligible.leader.replicas.version": 1,
        "share.version": 1,
        "remote.log.metadata.compaction": 1,
    }
    assert response.finalized_features_epoch == broker.controller.image.end_offset - 1


def test_features_with_a_level_0_are_shown_from_version_4_on(broker):
    response = broker.call(ApiKey.API_VERSIONS, 4, **CLIENT)
    supported = {
        feature.name: (feature.min_version, feature.max_version)
        for feature in response.supported_features
    }
    assert supported == {
        "metadata.version": (7, 30),
        "group.version": (0, 1),
        "transaction.version": (0, 2),
        "eligible.leader.replicas.version": (0, 1),
        "share.version": (0, 1),
        "remote.log.metadata.compaction": (0, 1),
    }


@pytest.mark.parametrize("name", ["", "-x", "x-", "a b", "ü"])
def test_client_software_name_outside_the_pattern_is_an_invalid_request(broker, name):
    response = broker.call(ApiKey.API_VERSIONS, 3, **{**CLIENT, "client_software_name": name})
    assert response.error_code is ErrorCode.invalid_request


def test_member_shows_its_features_and_the_versions_that_the_controller_serves_too(broker):
    controllers = SimpleNamespace(served=None)
    others = [api for key, api in APIS.items() if key != ApiKey.API_VERSIONS]
    api = declare(others, {"share.version": SupportedLevels(0, 1)}, controllers)

    def shown() -> dict[int, tuple[int, int]]:
        context = broker.context(ApiKey.API_VERSIONS, 4)
        request = entity_of(request_class(ApiKey.API_VERSIONS, 4), CLIENT)
        response = api.handle(context, request)
        assert [feature.name for feature in response.supported_features] == ["share.version"]
        return {
            api_key.api_key: (api_key.min_version, api_key.max_version)
            for api_key in response.api_keys
        }

    before = shown()
    assert before[ApiKey.CREATE_TOPICS] == (2, 7)
    # Controllers of another version. They lack UPDATE_FEATURES and share no version of
    # CREATE_PARTITIONS. The broker answers FETCH itself, so their versions of it do not matter.
    controllers.served = {int(key): VersionRange(0, 99) for key in ApiKey} | {
        int(ApiKey.CREATE_TOPICS): VersionRange(0, 5),
        int(ApiKey.CREATE_PARTITIONS): VersionRange(4, 9),
        int(ApiKey.FETCH): VersionRange(0, 1),
    }
    del controllers.served[ApiKey.UPDATE_FEATURES]
    assert shown() == {
        key: (2, 5) if key == ApiKey.CREATE_TOPICS else versions
        for key, versions in before.items()
        if key not in (ApiKey.CREATE_PARTITIONS, ApiKey.UPDATE_FEATURES)
    }
