"""The checks that an API declares: a right, the fields that name its resource, and what a denial
does. Data alone; `guarding` performs them.

A path names a field of a message, from its outermost array on: `topics/name`. An API has one path
for each way in which its versions name the resource. If a version has none of them, the request is
answered with an error, never unchecked.

Source: Kafka KafkaApis, ControllerApis, AuthHelper.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation, ResourceType

# The error code of a denial, by the type of the resource.
DENIAL_CODES: Mapping[ResourceType, ErrorCode] = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}


class Denial(enum.Enum):
    """What a denial does. A field outside of arrays refuses the request in any case."""

    REFUSES_REQUEST = enum.auto()
    REFUSES_ITEM = enum.auto()
    LEAVES_OUT = enum.auto()  # of the response


class TypeBy(NamedTuple):
    """The type of the resource depends on a field of the item or, if that has none, of the request.

    A resource of a type that is not in `types` is not checked: the handler refuses it.
    """

    field: str
    types: Mapping[int, ResourceType]
    default: int = 0  # of versions without the field


@dataclass(frozen=True, slots=True)
class Check:
    """A right that a request needs.

    - `names`: paths in the request. Of a right on the cluster, the fields that it covers: who has
      it may name anything there.
    - `shows`: paths in the response, of names that the request does not have. LEAVES_OUT removes
      the innermost items whose names are denied.
    - `unless_cluster`: who has this operation on the cluster needs no other right.
    - `judged`: the names that are checked, of those that a request has; the handler refuses all
      others for every client. None for all.
    - `is_logged`: whether a denial is written to Kafka's log of the authorizer. A denial of
      `unless_cluster` is not.
    """

    operation: Operation
    resource_type: ResourceType | TypeBy
    names: Sequence[str] = ()
    denial: Denial = Denial.REFUSES_REQUEST
    shows: Sequence[str] = ()
    unless_cluster: Operation | None = None
    judged: Callable[[Sequence[str]], set[str]] | None = None
    is_logged: bool = True

    def __post_init__(self) -> None:
        if self.denial is Denial.LEAVES_OUT:
            assert self.shows, "only what a response shows can be left out"
            assert not self.names, "an item of a request is refused, and not left out"
        elif self.resource_type is not ResourceType.CLUSTER:
            assert self.names, "a check of a resource needs the fields that name it"

    def resource_of(self, request: Any, item: Any, name: str) -> tuple[ResourceType, str] | None:
        """The resource with this name, in an item of a request; None if it is not checked."""
        if isinstance(self.resource_type, ResourceType):
            return self.resource_type, name
        field, types, default = self.resource_type
        of_request = getattr(request, field, default)
        kind = types.get(getattr(item, field, of_request))
        return None if kind is None else (kind, name)


def on_cluster(
    operation: Operation,
    *,
    covers: Sequence[str] = (),
    shows: Sequence[str] = (),
    unless_cluster: Operation | None = None,
) -> Check:
    """A right on the cluster, which refuses the whole request."""
    return Check(
        operation, ResourceType.CLUSTER, covers, shows=shows, unless_cluster=unless_cluster
    )


def on_group(operation: Operation) -> Check:
    """A right on the request's group, which refuses the whole request."""
    return Check(operation, ResourceType.GROUP, ["group_id"])


def on_topics(
    operation: Operation,
    covers: Sequence[str],
    *,
    shows: Sequence[str] = (),
    unless_cluster: Operation | None = None,
    judged: Callable[[Sequence[str]], set[str]] | None = None,
) -> Check:
    """A right on each topic, which refuses the topic alone."""
    return Check(
        operation,
        ResourceType.TOPIC,
        covers,
        Denial.REFUSES_ITEM,
        shows=shows,
        unless_cluster=unless_cluster,
        judged=judged,
    )


def named_once(names: Sequence[str]) -> set[str]:
    """The names that occur once. Handlers refuse changes of a resource that is named twice."""
    return {name for name, count in Counter(names).items() if count == 1}
