"""Performs the checks that APIs declare, before and after their handlers.

If an authorizer is configured, a guard replaces the handler of an API and calls it for the allowed
items. Without an authorizer there are no guards, so they cost nothing. A member of a cluster
forwards requests to the controller, which checks them. So the guards of forwarded APIs are not used
there. Reasons: docs/decisions/0114, docs/decisions/0212.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import CLUSTER_NAME, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.requests.access_checks import DENIAL_CODES, Check, Denial
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.item_refusal import handle_allowed, then
from isotherm.broker.server.requests.served_api import Access, Api, Guard

_Resource: TypeAlias = "tuple[ResourceType, str]"


def guarded_apis(apis: Mapping[int, Api], authorizer: Authorizer | None) -> Mapping[int, Api]:
    """`apis` with handlers that are called only for what `authorizer` allows; as they are if it is
    None.
    """
    if authorizer is None:
        return apis
    return {
        key: api
        if api.access.no_guard
        else dataclasses.replace(api, handle=partial(guard_of(api.access), authorizer, api))
        for key, api in apis.items()
    }


def guard_of(access: Access) -> Guard:
    """The guard that performs the checks of an API: its own, or one that is made of its checks."""
    assert not access.no_guard
    return access.guard or partial(_perform, access)


def _perform(
    access: Access, authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    if access.unless is not None and access.unless(request):
        return api.handle(context, request)
    of_items = None
    left_out = []
    for check in access.checks:
        if check.denial is Denial.LEAVES_OUT:
            left_out.append(check)
        elif check.denial is Denial.REFUSES_ITEM:
            of_items = check
        elif (code := refusal_of_request(authorizer, context, request, check)) is not None:
            return api.refuse(context, request, code, _message(check))
    if of_items is None:
        response = api.handle(context, request)
    else:
        response = handle_items(authorizer, api, context, request, of_items)
    if not left_out:
        return response
    return then(response, partial(_without_denied, authorizer, context, left_out))


def refusal_of_request(
    authorizer: Authorizer, context: RequestContext, request: Any, check: Check
) -> ErrorCode | None:
    """The code of a check that refuses whole requests; None if the request is allowed."""
    if _is_allowed_by_cluster(authorizer, context, check):
        return None
    if check.resource_type is ResourceType.CLUSTER:
        if authorizer.allows_cluster(context, check.operation):
            return None
        return DENIAL_CODES[ResourceType.CLUSTER]
    path = _path_in(request, check)
    value = getattr(request, path)
    names = (value,) if isinstance(value, str) else tuple(value or ())
    resources = (check.resource_of(request, None, name) for name in names)
    return _first_denial(authorizer, context, check, resources)


def _message(check: Check) -> str | None:
    if check.resource_type is not ResourceType.CLUSTER:
        return None
    return f"{check.operation.name} on the cluster is needed"


def _is_allowed_by_cluster(authorizer: Authorizer, context: RequestContext, check: Check) -> bool:
    return check.unless_cluster is not None and authorizer.allows_cluster(
        context, check.unless_cluster, is_logged=False
    )


def _path_in(request: Any, check: Check) -> str:
    """The path that the request's version has."""
    for path in check.names:
        if hasattr(request, path.partition("/")[0]):
            return path
    # A check that is left out would be a hole, so the request fails.
    raise AssertionError(
        f"no field names the resource of a check request={type(request).__module__}"
        f" paths={','.join(check.names)}"
    )


def _first_denial(
    authorizer: Authorizer,
    context: RequestContext,
    check: Check,
    resources: Iterable[_Resource | None],
) -> ErrorCode | None:
    denied = _denied(authorizer, context, check, resources)
    return next((DENIAL_CODES[resource_type] for resource_type, _ in denied), None)


def _denied(
    authorizer: Authorizer,
    context: RequestContext,
    check: Check,
    resources: Iterable[_Resource | None],
) -> set[_Resource]:
    """The resources without the right. Each is decided and logged once."""
    names: dict[ResourceType, set[str]] = {}
    for resource in resources:
        if resource is not None:
            names.setdefault(resource[0], set()).add(resource[1])
    return {
        (resource_type, name)
        for resource_type, of_type in names.items()
        for name in of_type
        - authorizer.allowed(
            context, check.operation, resource_type, of_type, is_logged=check.is_logged
        )
    }


def handle_items(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any, check: Check
) -> Any:
    """Handle the allowed items of a request, and refuse each other item alone."""
    if _is_allowed_by_cluster(authorizer, context, check):
        return api.handle(context, request)
    path = _path_in(request, check)
    array, _, _ = path.partition("/")
    items = getattr(request, array)
    if isinstance(items, str):
        resource = check.resource_of(request, None, items)
        code = _first_denial(authorizer, context, check, (resource,))
        if code is not None:
            return api.refuse(context, request, code)
        return api.handle(context, request)
    refusal_of = refusals_of_items(authorizer, context, request, check, items or ())
    if refusal_of is None:  # nearly always; the request is then handled as a whole
        return api.handle(context, request)
    return handle_allowed(api, context, request, refusal_of)


def refusals_of_items(
    authorizer: Authorizer,
    context: RequestContext,
    request: Any,
    check: Check,
    items: Sequence[Any],
) -> Callable[[Any], ErrorCode | None] | None:
    """The function for `handle_allowed` that refuses items without the right; None if all have it.

    A topic with an unknown id has no name to check. Its handler answers that it is unknown.
    """
    leaves = [path.rpartition("/")[2] for path in check.names]

    def resource_of(item: Any) -> _Resource | None:
        name = item if isinstance(item, str) else _name_of(context, item, leaves)
        if name is None:
            return None
        resource = check.resource_of(request, item, name)
        if resource is not None and resource[0] is ResourceType.CLUSTER:
            return ResourceType.CLUSTER, CLUSTER_NAME
        return resource

    resources = [resource for item in items if (resource := resource_of(item)) is not None]
    if check.judged is not None:
        judged = check.judged([name for _, name in resources])
        resources = [resource for resource in resources if resource[1] in judged]
    denied = _denied(authorizer, context, check, resources)
    if not denied:
        return None

    def refusal_of(item: Any) -> ErrorCode | None:
        resource = resource_of(item)
        if resource is None or resource not in denied:
            return None
        return DENIAL_CODES[resource[0]]

    return refusal_of


def topic_name(context: RequestContext, topic: Any) -> str | None:
    """The name of a topic in a request, which has its name, its id or both.

    None for an unknown id.
    """
    return _name_of(context, topic, ("topic", "name", "topic_id"))


def _name_of(context: RequestContext, item: Any, fields: Sequence[str]) -> str | None:
    values = [value for field in fields if (value := getattr(item, field, None)) is not None]
    for value in values:
        if isinstance(value, uuid.UUID):
            topic = context.services.metadata.image.topics_by_id.get(value)
            return None if topic is None else topic.name
    return values[0] if values else None


def _without_denied(
    authorizer: Authorizer, context: RequestContext, checks: Sequence[Check], response: Any
) -> Any:
    """The response without the items that the client may not see."""
    for check in checks:
        if _is_allowed_by_cluster(authorizer, context, check):
            continue
        assert isinstance(check.resource_type, ResourceType)
        for path in check.shows:
            *arrays, leaf = path.split("/")
            names = set(_names_at(response, arrays, leaf))
            allowed = authorizer.allowed(
                context, check.operation, check.resource_type, names, is_logged=check.is_logged
            )
            if names - allowed:
                response = _only(response, arrays, leaf, allowed)
    return response


def _names_at(message: Any, arrays: Sequence[str], leaf: str) -> Iterator[str]:
    if not arrays:
        yield getattr(message, leaf)
        return
    for item in getattr(message, arrays[0]):
        yield from _names_at(item, arrays[1:], leaf)


def _only(message: Any, arrays: Sequence[str], leaf: str, names: set[str]) -> Any:
    array, *inner = arrays
    items = getattr(message, array)
    if inner:
        kept = tuple(_only(item, inner, leaf, names) for item in items)
    else:
        kept = tuple(item for item in items if getattr(item, leaf) in names)
    return dataclasses.replace(message, **{array: kept})
