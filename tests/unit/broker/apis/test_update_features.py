"""UpdateFeatures: levels that can be set, and the reasons to refuse others."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from isotherm.protocol.api_keys import ApiKey

UPGRADE, SAFE, UNSAFE = 1, 2, 3
FEATURES = {
    "metadata.version": 30,
    "group.version": 1,
    "share.version": 1,
    "transaction.version": 2,
    "eligible.leader.replicas.version": 1,
    "remote.log.metadata.compaction": 1,
}


def update(broker, *updates, version=2, **fields):
    key = "upgrade_type" if version else "allow_downgrade"
    return broker.call(
        ApiKey.UPDATE_FEATURES,
        version,
        feature_updates=[
            {"feature": name, "max_version_level": level, key: kind}
            for name, level, kind in updates
        ],
        **fields,
    )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_level_that_is_set_already_is_fine(broker, version):
    before = broker.controller.image
    answer = update(
        broker, ("metadata.version", 30, UPGRADE if version else False), version=version
    )
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    if version < 2:
        assert [result.feature for result in answer.results] == ["metadata.version"]
    assert broker.controller.image is before


def test_metadata_compaction_is_raised_and_never_lowered(broker):
    name = "remote.log.metadata.compaction"
    answer = update(broker, (name, 1, UPGRADE))
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    for kind in (UPGRADE, SAFE, UNSAFE):
        answer = update(broker, (name, 0, kind))
        assert answer.error_code is ErrorCode.invalid_update_version
        assert broker.controller.image.features[name] == 1
    assert update(broker, (name, 2, UPGRADE)).error_code is ErrorCode.invalid_update_version


@pytest.mark.parametrize("version", [0, 1, 2])
def test_unknown_feature_is_named(broker, version):
    answer = update(broker, ("no.such", 1, UPGRADE if version else True), version=version)
    assert answer.error_code is ErrorCode.invalid_update_version
    assert "feature=no.such" in answer.error_message


@pytest.mark.parametrize(
    "wanted",
    [
        ("metadata.version", 31, UPGRADE),
        ("metadata.version", 6, UNSAFE),
        ("metadata.version", -1, UNSAFE),
        ("metadata.version", 29, UPGRADE),
        ("metadata.version", 29, SAFE),
        ("metadata.version", 29, UNSAFE),
        ("metadata.version", 30, 9),
    ],
)
@pytest.mark.parametrize("validate_only", [True, False])
def test_levels_that_cannot_be_are_refused(broker, wanted, validate_only):
    answer = update(broker, wanted, validate_only=validate_only)
    assert answer.error_code is ErrorCode.invalid_update_version
    assert broker.controller.image.features == FEATURES


def test_feature_that_is_updated_twice_is_refused(broker):
    twice = [("metadata.version", 30, UPGRADE)] * 2
    assert update(broker, *twice).error_code is ErrorCode.invalid_request
