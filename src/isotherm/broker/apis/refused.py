"""APIs of what a broker of Kafka may have turned off and this one does not have at all.

Versions  SaslHandshake (17) 0-1 · SaslAuthenticate (36) 0-2 · CreateDelegationToken (38) 1-3 ·
          RenewDelegationToken (39), ExpireDelegationToken (40) 1-2 · DescribeDelegationToken (41) 1-3 ·
          AddRaftVoter (80) 0-1 · RemoveRaftVoter (81) 0 · share groups (76-79, 83-87, 90-92) and
          streams groups (88, 89) in Kafka's versions
Behaviour Refused with the code of a broker of Kafka that has it turned off: no SASL and no delegation
          tokens on a PLAINTEXT listener, share.version=0, streams.version=0, kraft.version=0. Served
          so that a client hears why, and one that guesses the version from the APIs guesses right.
Not done  All of it.
KIPs      43, 48, 853, 932, 1071
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import blank_entity


class _Refusal(NamedTuple):
    error_code: ErrorCode
    message: str | None


_SASL = _Refusal(ErrorCode.illegal_sasl_state, "this listener has no SASL")
_TOKENS = _Refusal(ErrorCode.delegation_token_request_not_allowed, None)
_VOTERS = _Refusal(ErrorCode.unsupported_version, "the quorum has one voter, for ever")
_SHARE = _Refusal(ErrorCode.unsupported_version, "share groups are not served")
_STREAMS = _Refusal(ErrorCode.unsupported_version, "streams groups are not served")

REFUSALS: Mapping[int, _Refusal] = {
    ApiKey.SASL_HANDSHAKE: _SASL,
    ApiKey.SASL_AUTHENTICATE: _SASL,
    ApiKey.CREATE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.RENEW_DELEGATION_TOKEN: _TOKENS,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.ADD_RAFT_VOTER: _VOTERS,
    ApiKey.REMOVE_RAFT_VOTER: _VOTERS,
    ApiKey.SHARE_GROUP_HEARTBEAT: _SHARE,
    ApiKey.SHARE_GROUP_DESCRIBE: _SHARE,
    ApiKey.SHARE_FETCH: _SHARE,
    ApiKey.SHARE_ACKNOWLEDGE: _SHARE,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARE,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _SHARE,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _SHARE,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _SHARE,
    ApiKey.STREAMS_GROUP_HEARTBEAT: _STREAMS,
    ApiKey.STREAMS_GROUP_DESCRIBE: _STREAMS,
}

_DESCRIBE_GROUPS = (ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.STREAMS_GROUP_DESCRIBE)


def handle(context: RequestContext, request: Any) -> Any:
    return _refuse(context, request, *REFUSALS[context.header.api_key])


def error_response(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    return _refuse(context, request, error_code, None)


def _refuse(
    context: RequestContext, request: Any, error_code: ErrorCode, message: str | None
) -> Any:
    """The whole request, or where its response has codes by group or partition, each of them."""
    key, refusal = context.header.api_key, {"error_code": error_code, "error_message": message}
    fields: dict[str, Any] = dict(refusal)
    if key in _DESCRIBE_GROUPS:
        fields["groups"] = [{**refusal, "group_id": each} for each in request.group_ids]
    elif key == ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS:
        fields["groups"] = [{**refusal, "group_id": each.group_id} for each in request.groups]
    elif ApiKey.INITIALIZE_SHARE_GROUP_STATE <= key <= ApiKey.READ_SHARE_GROUP_STATE_SUMMARY:
        fields["results"] = [
            {
                "topic_id": topic.topic_id,
                "partitions": [
                    {**refusal, "partition": each.partition} for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    return blank_entity(response_class(key, context.header.api_version), fields)
