"""Users for a comparison of what is allowed, generated from the declarations of the
APIs.

For each right that an API declares there are users who have every right but this one on a resource,
or on any resource, and users who have no other right. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.server.requests.access_checks import TypeBy
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey
from tests.oracle.access_sides import CLUSTER, DENY, EVERYTHING, NAMES, Rule

ANY = "*"


class Right(NamedTuple):
    operation: Operation
    resource_type: ResourceType

    @property
    def name(self) -> str:
        return f"{self.operation.name}-{self.resource_type.name}"


# Rights that only change what an allowed request shows, and WRITE on any topic, which stands in for
# IDEMPOTENT_WRITE.
_ALSO: Mapping[int, Sequence[Right]] = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: [Right(Operation.READ, ResourceType.GROUP)],
    ApiKey.CREATE_TOPICS: [Right(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)],
    ApiKey.DESCRIBE_CLUSTER: [
        Right(Operation.DESCRIBE, ResourceType.CLUSTER),
        Right(Operation.ALTER, ResourceType.CLUSTER),
    ],
    ApiKey.DESCRIBE_GROUPS: [Right(Operation.READ, ResourceType.GROUP)],
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: [Right(Operation.WRITE, ResourceType.TOPIC)],
    ApiKey.INIT_PRODUCER_ID: [Right(Operation.WRITE, ResourceType.TOPIC)],
    ApiKey.METADATA: [
        Right(Operation.DESCRIBE, ResourceType.CLUSTER),
        Right(Operation.WRITE, ResourceType.TOPIC),
    ],
}


def rights_of(api: Api) -> list[Right]:
    """The rights that an API declares, in the order of its checks."""
    return list(dict.fromkeys([*_declared(api), *_ALSO.get(api.key, ())]))


def _declared(api: Api) -> Iterator[Right]:
    for check in api.access.checks:
        if check.unless_cluster is not None:
            yield Right(check.unless_cluster, ResourceType.CLUSTER)
        types = check.resource_type
        for each in types.types.values() if isinstance(types, TypeBy) else [types]:
            yield Right(check.operation, each)


def users_of(api: Api) -> list[str]:
    """The users who send the requests of an API."""
    return ["none", "all", *(user for right in rights_of(api) for user in _rules_by_user(right))]


def rules_by_user() -> dict[str, list[Rule]]:
    """The ACLs of all users."""
    rules: dict[str, list[Rule]] = {"none": [], "all": _all_for("all")}
    for api in APIS.values():
        for right in rights_of(api):
            rules.update(_rules_by_user(right))
    return rules


def _rules_by_user(right: Right) -> dict[str, list[Rule]]:
    operation, resource_type = right
    name = dict(NAMES)[resource_type]
    users = {f"not-{right.name}": name, f"never-{right.name}": ANY}
    if resource_type is ResourceType.CLUSTER:
        users = {f"not-{right.name}": CLUSTER}
    denied = {
        user: [
            *_all_for(user),
            Rule(resource_type, of, operation, DENY, principal=f"User:{user}"),
        ]
        for user, of in users.items()
    }
    only = f"only-{right.name}"
    return {**denied, only: [Rule(resource_type, name, operation, principal=f"User:{only}")]}


def _all_for(user: str) -> list[Rule]:
    return [rule._replace(principal=f"User:{user}") for rule in EVERYTHING]
