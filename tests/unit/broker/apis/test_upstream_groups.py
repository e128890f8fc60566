"""Groups of a cluster in front of which a read replica stands, as its clients see them."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any, ClassVar

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.upstream_groups import UpstreamGroups
from isotherm.broker.peers import upstream_client
from isotherm.broker.server.requests.served_api import Handler
from isotherm.client.node_address import NodeAddress
from isotherm.errors import CoordinatorNotAvailableError
from isotherm.protocol.api_keys import ApiKey, response_class
from isotherm.protocol.entities import entity_of

FIRST, SECOND = NodeAddress("a", 1), NodeAddress("b", 2)


class _Upstream:
    def __init__(self, *addresses: NodeAddress) -> None:
        self.addresses = dict(enumerate(addresses))

    def properties_now(self) -> dict[str, str]:
        return {}


class _Client:
    """In place of ClusterClient: the brokers answer with what the test says."""

    answers: ClassVar[dict[NodeAddress, Any]] = {}

    def __init__(self, properties: object, *, client_id: str, request_timeout_s: float) -> None:
        pass

    def pass_on(self, address: NodeAddress, request: object) -> Any:
        return self.answers[address]

    def close(self) -> None:
        pass


def listed(*group_ids: str, error_code: ErrorCode = ErrorCode.none) -> Any:
    groups = [
        {"group_id": group_id, "protocol_type": "", "group_state": "Empty", "group_type": "classic"}
        for group_id in group_ids
    ]
    fields = {"throttle_time": datetime.timedelta(), "error_code": error_code, "groups": groups}
    return entity_of(response_class(ApiKey.LIST_GROUPS, 5), fields)


def list_groups(monkeypatch: pytest.MonkeyPatch, answers: dict[NodeAddress, Any]) -> Any:
    monkeypatch.setattr(upstream_client, "ClusterClient", _Client)
    monkeypatch.setattr(_Client, "answers", answers)
    groups = UpstreamGroups(_Upstream(*answers))  # type: ignore[arg-type]
    handle: Handler = groups._list

    async def ask() -> Any:
        return await handle(None, object())  # type: ignore[arg-type]

    try:
        return asyncio.run(ask())
    finally:
        groups.close()


def test_list_has_the_groups_of_all_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = list_groups(monkeypatch, {FIRST: listed("a", "b"), SECOND: listed("c")})
    assert [group.group_id for group in answer.groups] == ["a", "b", "c"]
    assert answer.error_code is ErrorCode.none


@pytest.mark.parametrize("broker", [FIRST, SECOND])
def test_list_that_would_lack_the_groups_of_a_broker_is_refused(
    monkeypatch: pytest.MonkeyPatch, broker: NodeAddress
) -> None:
    loading = listed(error_code=ErrorCode.coordinator_load_in_progress)
    answer = list_groups(monkeypatch, {FIRST: listed("a"), SECOND: listed("c"), broker: loading})
    assert answer.error_code is ErrorCode.coordinator_load_in_progress
    assert not answer.groups


def test_cluster_that_has_named_no_broker_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CoordinatorNotAvailableError):
        list_groups(monkeypatch, {})
