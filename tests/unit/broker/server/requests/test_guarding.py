"""An API cannot be made without its checks, and a check cannot be skipped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import Check, Denial, TypeBy, on_cluster
from isotherm.broker.server.requests.guarding import guard_of, guarded_apis
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

GROUP = Check(Operation.READ, ResourceType.GROUP, ["group_id"])
GROUPS = Check(Operation.READ, ResourceType.GROUP, ["groups/name", "group"], Denial.REFUSES_ITEM)


class Authorizer:
    """Allows what is named in `names`, and keeps what was checked."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.checked: list[tuple[str, str, str]] = []

    def allowed(self, asking: Any, operation: Any, kind: Any, names: Any, **_: Any) -> set[str]:
        self.checked += [(operation.name, kind.name, name) for name in sorted(names)]
        return set(names) & self.names

    def allows_cluster(self, asking: Any, operation: Any, **_: Any) -> bool:
        self.checked.append((operation.name, "CLUSTER", ""))
        return operation.name in self.names


class Handled:
    """An API whose answers tell what reached the handler and what was refused."""

    def __init__(self, access: Access, response: Any = "handled") -> None:
        self.access = access
        self.response = response

    def handle(self, context: Any, request: Any) -> Any:
        return self.response

    def refuse(self, context: Any, request: Any, code: Any, message: str | None = None) -> Any:
        return code.name, message


def answer(access: Access, authorizer: Authorizer, request: Any, response: Any = "handled") -> Any:
    api = Handled(access, response)
    return guard_of(access)(cast("Any", authorizer), cast("Any", api), cast("Any", None), request)


def test_api_without_checks_cannot_be_made() -> None:
    make: Any = Api
    versions = VersionRange(0, 0)
    with pytest.raises(TypeError, match="access"):
        make(ApiKey.VOTE, versions, lambda context, request: None)
    with pytest.raises(TypeError, match="no access checks api=VOTE"):
        make(ApiKey.VOTE, versions, lambda context, request: None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"no_guard": "", "checks": []},
        {"guard": print},
        {"checks": [GROUP], "guard": print, "no_guard": "its handler checks"},
        {"checks": [GROUP], "guard": print, "unless": bool},
        {"checks": [GROUPS, GROUPS]},
    ],
)
def test_declaration_without_a_meaning_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"an API|a guard"):
        Access(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"denial": Denial.LEAVES_OUT},
        {"denial": Denial.LEAVES_OUT, "shows": ["groups/name"], "names": ["groups"]},
    ],
)
def test_check_without_the_fields_that_name_its_resource_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        Check(Operation.READ, ResourceType.GROUP, **fields)


def test_without_an_authorizer_the_handlers_are_called_directly() -> None:
    assert guarded_apis(APIS, None) is APIS


def test_each_api_with_a_guard_is_guarded() -> None:
    guarded = guarded_apis(APIS, cast("Any", Authorizer()))
    assert guarded.keys() == APIS.keys()
    for key, api in APIS.items():
        assert (guarded[key].handle == api.handle) is bool(api.access.no_guard)


@pytest.mark.parametrize("check", [GROUP, GROUPS])
def test_request_that_lacks_every_field_of_a_check_is_not_handled(check: Check) -> None:
    with pytest.raises(AssertionError, match="no field names the resource"):
        answer(Access([check]), Authorizer(), SimpleNamespace(other="g"))


def test_checks_are_made_in_their_order_and_the_first_denial_decides() -> None:
    checks = [
        on_cluster(Operation.ALTER, unless_cluster=Operation.CREATE),
        GROUP,
        Check(Operation.DESCRIBE, ResourceType.TOPIC, ["topics"]),
    ]
    request = SimpleNamespace(group_id="g", topics=("s", "t"))
    cluster = [("CREATE", "CLUSTER", ""), ("ALTER", "CLUSTER", "")]
    for names, expected, count in [
        ((), ("cluster_authorization_failed", "ALTER on the cluster is needed"), 2),
        (("ALTER",), ("group_authorization_failed", None), 3),
        (("ALTER", "g", "s"), ("topic_authorization_failed", None), 5),
        (("ALTER", "g", "s", "t"), "handled", 5),
    ]:
        authorizer = Authorizer(*names)
        assert answer(Access(checks), authorizer, request) == expected
        every = [
            *cluster,
            ("READ", "GROUP", "g"),
            ("DESCRIBE", "TOPIC", "s"),
            ("DESCRIBE", "TOPIC", "t"),
        ]
        assert authorizer.checked == every[:count]


def test_item_outside_of_an_array_refuses_the_request() -> None:
    request = SimpleNamespace(group="g")
    assert answer(Access([GROUPS]), Authorizer("g"), request) == "handled"
    refused = ("group_authorization_failed", None)
    assert answer(Access([GROUPS]), Authorizer(), request) == refused


def test_resource_of_a_type_without_permissions_is_left_to_the_handler() -> None:
    by_type = TypeBy("type", {1: ResourceType.GROUP})
    access = Access([Check(Operation.READ, by_type, ["name"], Denial.REFUSES_ITEM)])
    authorizer = Authorizer()
    assert answer(access, authorizer, SimpleNamespace(name="g", type=2)) == "handled"
    assert authorizer.checked == []
    refused = ("group_authorization_failed", None)
    assert answer(access, authorizer, SimpleNamespace(name="g", type=1)) == refused
