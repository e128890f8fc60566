"""APIs of features that a Kafka broker can turn off and this broker does not have.

Versions  SaslHandshake (17) 0-1 · SaslAuthenticate (36) 0-2 · CreateDelegationToken (38) 1-3 ·
          RenewDelegationToken (39), ExpireDelegationToken (40) 1-2 · DescribeDelegationToken (41)
          1-3 · AddRaftVoter (80) 0-1 · RemoveRaftVoter (81) 0 · streams groups (88, 89) in Kafka's
          versions
Behaviour Refused with the error code of a Kafka broker that has the feature turned off: no SASL and
          no delegation tokens on a PLAINTEXT listener, streams.version=0,
          kraft.version=0. They are served so that a client gets the reason, and so that a client
          that derives the Kafka version from the list of APIs is right.
Not done  All of it.
KIPs      43, 48, 853, 1071
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

_FOR_EVERYONE = Access(no_guard="refused for every client")
_FOR_LOGIN = Access(no_guard="it is the login")


def _refused(
    key: ApiKey,
    versions: VersionRange,
    code: ErrorCode,
    message: str | None = None,
    items: Sequence[Items] = (),
    fixed: Mapping[str, Any] | None = None,
    *,
    access: Access = _FOR_EVERYONE,
    is_forwardable: bool = False,
) -> Api:
    def handle(context: RequestContext, request: Any) -> Any:
        return api.refuse(context, request, code, message)

    api = Api(
        key,
        versions,
        handle,
        access,
        items=items,
        fixed=fixed or {},
        is_forwardable=is_forwardable,
    )
    return api


def _no_sasl(key: ApiKey, last: int) -> Api:
    versions, message = VersionRange(0, last), "this listener has no SASL"
    return _refused(key, versions, ErrorCode.illegal_sasl_state, message, access=_FOR_LOGIN)


def _no_tokens(key: ApiKey, last: int) -> Api:
    return _refused(key, VersionRange(1, last), ErrorCode.delegation_token_request_not_allowed)


def _one_voter(key: ApiKey, last: int) -> Api:
    return _refused(
        key,
        VersionRange(0, last),
        ErrorCode.unsupported_version,
        "the quorum has a single voter, which cannot be changed",
        access=Access([on_cluster(Operation.ALTER, covers=["cluster_id", "voter_directory_id"])]),
        is_forwardable=True,
    )


def _no_streams_groups(key: ApiKey, items: Sequence[Items] = (), **fixed: Any) -> Api:
    versions, message = VersionRange(0, 0), "streams groups are not supported"
    return _refused(key, versions, ErrorCode.unsupported_version, message, items, fixed)


_GROUP_IDS = (Items(("group_ids",), ("groups",), named="group_id"),)

APIS: Sequence[Api] = (
    _no_sasl(ApiKey.SASL_HANDSHAKE, 1),
    _no_sasl(ApiKey.SASL_AUTHENTICATE, 2),
    _no_tokens(ApiKey.CREATE_DELEGATION_TOKEN, 3),
    _no_tokens(ApiKey.RENEW_DELEGATION_TOKEN, 2),
    _no_tokens(ApiKey.EXPIRE_DELEGATION_TOKEN, 2),
    _no_tokens(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3),
    _one_voter(ApiKey.ADD_RAFT_VOTER, 1),
    _one_voter(ApiKey.REMOVE_RAFT_VOTER, 0),
    _no_streams_groups(ApiKey.STREAMS_GROUP_HEARTBEAT),
    _no_streams_groups(ApiKey.STREAMS_GROUP_DESCRIBE, _GROUP_IDS, authorized_operations=0),
)
