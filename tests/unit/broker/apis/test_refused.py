"""APIs that the broker does not support are refused in every version, with that API's own
response."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import refused
from isotherm.broker.apis.api_register import APIS, SERVED
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import blank_entity

ASKED = {
    ApiKey.SHARE_GROUP_DESCRIBE: {"group_ids": ["a", "b"]},
    ApiKey.STREAMS_GROUP_DESCRIBE: {"group_ids": ["a", "b"]},
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: {"groups": [{"group_id": "a"}, {"group_id": "b"}]},
}


REFUSED = [api.key for api in refused.APIS]
TOKENS = range(ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN + 1)
# Kafka's codes for APIs that it can turn off too. All other APIs get UNSUPPORTED_VERSION.
CODES = {
    ApiKey.SASL_HANDSHAKE: ErrorCode.illegal_sasl_state,
    ApiKey.SASL_AUTHENTICATE: ErrorCode.illegal_sasl_state,
    **dict.fromkeys(TOKENS, ErrorCode.delegation_token_request_not_allowed),
}


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, v) for key in REFUSED for v in range(SERVED[key].min, SERVED[key].max + 1)],
)
def test_refusal_names_the_error_for_each_thing_that_is_asked(broker, key, version):
    context = broker.context(key, version)
    request = blank_entity(request_class(key, version), ASKED.get(key, {}))

    answer = broker.as_client_sees_it(key, version, APIS[key].handle(context, request))
    shown = repr(answer)
    assert shown.count(repr(CODES.get(key, ErrorCode.unsupported_version))) == (
        2 if key in ASKED else 1
    )
    failed = APIS[key].refuse(context, request, ErrorCode.kafka_storage_error)
    assert "kafka_storage_error" in repr(broker.as_client_sees_it(key, version, failed))
