"""AlterClientQuotas and DescribeClientQuotas."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from isotherm.protocol.api_keys import ApiKey

EXACT, DEFAULT, ANY = range(3)


def alter(broker, *entries, version=1, validate_only=False):
    """Alter quotas. `entries` are (entity, quotas); a quota of None is removed. Returns an error
    code per entity."""
    answers = broker.call(
        ApiKey.ALTER_CLIENT_QUOTAS,
        version,
        entries=[
            {
                "entity": [
                    {"entity_type": kind, "entity_name": name} for kind, name in entity.items()
                ],
                "ops": [
                    {"key": key, "value": value or 0.0, "remove": value is None}
                    for key, value in quotas.items()
                ],
            }
            for entity, quotas in entries
        ],
        validate_only=validate_only,
    ).entries
    answered = [
        {part.entity_type: part.entity_name for part in answer.entity} for answer in answers
    ]
    # An entity named twice has one answer.
    assert answered == [
        entity for number, (entity, _) in enumerate(entries) if entity not in answered[:number]
    ]
    return [answer.error_code for answer in answers]


def describe(broker, *filters, strict=False, version=1):
    """The quotas by entity, with the entity as text; or the error code."""
    answer = broker.call(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        version,
        components=[
            {"entity_type": kind, "match_type": match, "match": name}
            for kind, match, name in filters
        ],
        strict=strict,
    )
    if answer.error_code is not ErrorCode.none:
        return answer.error_code
    return {
        ",".join(f"{part.entity_type}={part.entity_name}" for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


@pytest.fixture
def quotas(broker):
    codes = alter(
        broker,
        ({"user": "u"}, {"producer_byte_rate": 10.0}),
        ({"user": None}, {"request_percentage": 0.5}),
        ({"client-id": "c"}, {"consumer_byte_rate": 20.0}),
        ({"user": "u", "client-id": "c"}, {"producer_byte_rate": 5.0}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 3.0}),
    )
    assert codes == [ErrorCode.none] * 5
    return broker


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_changed_and_taken_away(broker, version):
    user = {"user": "u"}
    both = {"producer_byte_rate": 10.0, "consumer_byte_rate": 20.0}
    assert alter(broker, (user, both), version=version) == [ErrorCode.none]
    assert describe(broker, version=version) == {"user=u": both}
    change = {"producer_byte_rate": None, "consumer_byte_rate": 30.0}
    alter(broker, (user, change), version=version)
    assert describe(broker, version=version) == {"user=u": {"consumer_byte_rate": 30.0}}
    alter(broker, (user, {"consumer_byte_rate": None}), version=version)
    assert describe(broker, version=version) == {}


@pytest.mark.parametrize(
    ("filters", "strict", "found"),
    [
        ([], False, {"user=u", "user=None", "client-id=c", "client-id=c,user=u", "ip=10.0.0.1"}),
        ([("user", EXACT, "u")], False, {"user=u", "client-id=c,user=u"}),
        ([("user", EXACT, "u")], True, {"user=u"}),
        ([("user", DEFAULT, None)], False, {"user=None"}),
        ([("user", ANY, None)], True, {"user=u", "user=None"}),
        ([("user", ANY, None), ("client-id", EXACT, "c")], False, {"client-id=c,user=u"}),
        ([("ip", ANY, None)], False, {"ip=10.0.0.1"}),
        ([("user", EXACT, "nobody")], False, set()),
    ],
)
def test_filters_choose_entities(quotas, filters, strict, found):
    assert set(describe(quotas, *filters, strict=strict)) == found


@pytest.mark.parametrize(
    ("filters", "code"),
    [
        ([("user", ANY, None), ("user", ANY, None)], ErrorCode.invalid_request),
        ([("user", 9, None)], ErrorCode.invalid_request),
        ([("user", EXACT, None)], ErrorCode.invalid_request),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.invalid_request),
        ([("host", ANY, None)], ErrorCode.unsupported_version),
    ],
)
def test_filters_that_make_no_sense_are_refused(quotas, filters, code):
    assert describe(quotas, *filters) is code


@pytest.mark.parametrize(
    ("entity", "change"),
    [
        ({}, {"producer_byte_rate": 1.0}),
        ({"host": "h"}, {"producer_byte_rate": 1.0}),
        ({"user": ""}, {"producer_byte_rate": 1.0}),
        ({"user": "u", "ip": "1.2.3.4"}, {"producer_byte_rate": 1.0}),
        ({"user": "u"}, {"no_such_rate": 1.0}),
        ({"user": "u"}, {"connection_creation_rate": 1.0}),
        ({"ip": "1.2.3.4"}, {"producer_byte_rate": 1.0}),
        ({"user": "u"}, {"producer_byte_rate": -1.0}),
        ({"user": "u"}, {"producer_byte_rate": 1.5}),
        ({"user": "u"}, {"producer_byte_rate": float("nan")}),
        ({"user": "u"}, {"request_percentage": float("inf")}),
        ({"user": "u"}, {"producer_byte_rate": float("inf")}),
        ({"user": "u"}, {"producer_byte_rate": 1.0, "consumer_byte_rate": -1.0}),
    ],
)
def test_what_cannot_be_a_quota_is_refused_and_the_rest_is_set(broker, entity, change):
    other = ({"user": "other"}, {"producer_byte_rate": 1.0})
    assert alter(broker, (entity, change), other) == [ErrorCode.invalid_request, ErrorCode.none]
    assert set(describe(broker)) == {"user=other"}


def test_entity_named_twice_is_refused(broker):
    entry = ({"user": "u"}, {"producer_byte_rate": 1.0})
    assert alter(broker, entry, entry) == [ErrorCode.invalid_request]


def test_validating_only_sets_nothing(broker):
    entry = ({"user": "u"}, {"producer_byte_rate": 1.0})
    assert alter(broker, entry, validate_only=True) == [ErrorCode.none]
    assert describe(broker) == {}


def test_quotas_are_there_after_a_restart(quotas, cluster_metadata):
    after = cluster_metadata.replayed().image.client_quotas
    assert after == quotas.controller.image.client_quotas
    assert len(after) == 5
