"""Each field that names a resource is known to the checks of its API.

Kafka's schemas are the oracle: every string, uuid and broker id of every served version either is
in the declaration of its API, repeats the request, or has a name below, which names no resource.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.types import BrokerId

from isotherm.broker.apis import refused
from isotherm.broker.apis.api_register import APIS
from isotherm.broker.metadata.access.acls import ResourceType
from isotherm.broker.server.requests.access_checks import Check
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.entities import has_field
from isotherm.protocol.schema import schema_fields

# Fields of these names hold what a resource has, or what a client says of itself, and no name of a
# resource.
NO_RESOURCE = frozenset(
    {
        "assignor_name",
        "batch_index_error_message",
        "client_host",
        "client_id",
        "client_software_name",
        "client_software_version",
        "committed_metadata",
        "configuration_keys",
        "documentation",
        "entity_type",
        "error_message",
        "feature",
        "group_instance_id",
        "group_state",
        "group_type",
        "host",
        "host_filter",
        "instance_id",
        "leader",
        "mechanism",
        "mechanisms",
        "member_id",
        "metadata",
        "protocol_data",
        "protocol_name",
        "protocol_type",
        "rack",
        "rack_id",
        "reason",
        "replica_directory_id",
        "server_assignor",
        "state_filters",
        "states_filter",
        "subscribed_topic_regex",
        "transaction_state",
        "types_filter",
        "unknown_state_filters",
        "value",
    }
)
# Fields below arrays of these names, whose items are no resources.
NO_RESOURCES_IN = frozenset(
    {
        "configs",
        "finalized_features",
        "listeners",
        "ops",
        "protocols",
        "supported_features",
        "synonyms",
        "values",
    }
)
# Every client learns the ids of brokers, and the cluster's, from Metadata.
TOLD_TO_EVERYONE = frozenset({"cluster_id", "node_id", "leader_id", "controller_id"})
NOT_SERVED = {api.key for api in refused.APIS}
SERVED = [
    (api, version)
    for api in APIS.values()
    if api.key not in NOT_SERVED
    for version in range(api.versions.min, api.versions.max + 1)
]


def ids_of(value: tuple[Api, int]) -> str:
    api, version = value
    return f"{ApiKey(api.key).name}-{version}"


def resource_fields(message: type[Any], path: str = "") -> Iterator[str]:
    """The paths of the fields that may name a resource."""
    brokers = {
        name for name, hint in typing.get_type_hints(message).items() if BrokerId in types_in(hint)
    }
    for field in schema_fields(message):
        if field.entity_type is not None:
            if field.name not in NO_RESOURCES_IN:
                yield from resource_fields(field.entity_type, f"{path}{field.name}/")
        elif field.kafka_type in ("string", "uuid") or field.name in brokers:
            yield path + field.name


def types_in(hint: Any) -> set[Any]:
    return {hint}.union(*map(types_in, typing.get_args(hint)))


def declared(api: Api, *, in_request: bool) -> set[str]:
    paths = {
        path for check in api.access.checks for path in (check.names if in_request else check.shows)
    }
    return paths | api.access.unchecked.keys()


def repeated(api: Api, request: type[Any], path: str) -> bool:
    """Whether a field of a response repeats the field of the request that names an item."""
    *arrays, leaf = path.split("/")
    for items in api.items:
        if items.response[: len(arrays)] == tuple(arrays) and has_field(request, items.request[0]):
            array = "/".join(items.request[: len(arrays)])
            if leaf == items.named or f"{array}/{leaf}" in set(resource_fields(request)):
                return True
    return False


def needs_declaration(path: str, *, is_response: bool) -> bool:
    leaf = path.rpartition("/")[2]
    return leaf not in NO_RESOURCE and not (is_response and is_told_to_everyone(leaf))


def is_told_to_everyone(leaf: str) -> bool:
    return leaf in TOLD_TO_EVERYONE or leaf.endswith(("replicas", "_nodes", "replica", "elr"))


@pytest.mark.parametrize("served", SERVED, ids=ids_of)
def test_request_names_no_resource_that_is_not_declared(served: tuple[Api, int]) -> None:
    api, version = served
    fields = {
        path
        for path in resource_fields(request_class(api.key, version))
        if needs_declaration(path, is_response=False)
    }
    assert fields - declared(api, in_request=True) == set()


@pytest.mark.parametrize("served", SERVED, ids=ids_of)
def test_response_shows_no_resource_that_is_not_declared(served: tuple[Api, int]) -> None:
    api, version = served
    request, response = request_class(api.key, version), response_class(api.key, version)
    fields = {
        path
        for path in resource_fields(response)
        if needs_declaration(path, is_response=True) and not repeated(api, request, path)
    }
    assert fields - declared(api, in_request=False) == set()


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: ApiKey(api.key).name)
def test_declared_fields_exist(api: Api) -> None:
    versions = range(api.versions.min, api.versions.max + 1)
    requests = {field for v in versions for field in resource_fields(request_class(api.key, v))}
    responses = {field for v in versions for field in resource_fields(response_class(api.key, v))}
    assert {path for check in api.access.checks for path in check.names} <= requests
    assert {path for check in api.access.checks for path in check.shows} <= responses
    assert api.access.unchecked.keys() <= requests | responses
    assert all(api.access.unchecked.values())


def is_in(check: Check, api: Api, version: int) -> bool:
    fields = set(resource_fields(request_class(api.key, version)))
    return not fields.isdisjoint(check.names)


@pytest.mark.parametrize("served", SERVED, ids=ids_of)
def test_each_check_finds_its_resource_in_each_version(served: tuple[Api, int]) -> None:
    """A guard of its own may have checks that only some versions need."""
    api, version = served
    if api.access.guard is None:
        for check in api.access.checks:
            if check.names and check.resource_type is not ResourceType.CLUSTER:
                assert is_in(check, api, version), check


def test_field_that_is_not_declared_is_noticed() -> None:
    listed = APIS[ApiKey.LIST_OFFSETS]
    access = dataclasses.replace(
        listed.access, checks=(dataclasses.replace(listed.access.checks[0], names=["topics/id"]),)
    )
    api = dataclasses.replace(listed, access=access)
    with pytest.raises(AssertionError, match="topics/name"):
        test_request_names_no_resource_that_is_not_declared((api, listed.versions.max))
