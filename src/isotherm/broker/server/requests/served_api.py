"""The declaration of an API, which each module of `isotherm.broker.apis` makes.

Dispatch, splitting of large requests, quotas and ApiVersions use only this declaration
(docs/decisions/0091).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.net.connection import Answer
from isotherm.broker.server.requests.access_checks import Check, Denial
from isotherm.broker.server.requests.context import BrokerServices, RequestContext
from isotherm.broker.server.requests.refusals import (
    Items,
    Refusal,
    refused_items,
    refusing_response,
)
from isotherm.protocol.api_keys import ApiKey, VersionRange, response_class

# A handler returns the response, None if the client expects none, or an awaitable of either.
Handler: TypeAlias = Callable[[RequestContext, Any], Any]
Refuse: TypeAlias = Callable[[RequestContext, Any, ErrorCode], Any]
# Gets the API with its own handler; returns what that returns.
Guard: TypeAlias = "Callable[[Authorizer, Api, RequestContext, Any], Any]"


class Repetition(NamedTuple):
    """How an API answers requests that repeat an earlier one of their connection, without decoding
    them.

    - `remember` gets a request that was answered at once, and its response.
    - `repeat` gets key and version of a request, its frame, and what `remember` has put into the
      connection. It returns the answer, or None for any other request; nothing has changed then.
    """

    remember: Callable[[RequestContext, memoryview, Any, Any], None]
    repeat: Callable[[BrokerServices, tuple[int, int], memoryview, Any], Answer | None]


class Charge(enum.Enum):
    """The quota that a request is charged to, besides its processing time."""

    TIME_ALONE = enum.auto()
    PRODUCED_BYTES = enum.auto()
    FETCHED_BYTES = enum.auto()
    MUTATIONS = enum.auto()


class Renamed(NamedTuple):
    """An error code that versions below `first_version` lack. They get `before` instead."""

    first_version: int
    before: ErrorCode


@dataclass(frozen=True, slots=True)
class Access:
    """The rights that a request needs. `guarding` checks them, in their order.

    - `guard`: checks in place of `guarding`, because the API is an exception. `checks` then only
      say what it checks.
    - `no_guard`: the reason why nothing is checked before the handler. With `checks`, those that
      the handler makes.
    - `unless`: requests that are left to the handler, which refuses them for every client.
    - `unchecked`: each other field of the request or the response that names a resource, with the
      reason why no right is needed for it.
    """

    checks: Sequence[Check] = ()
    guard: Guard | None = None
    no_guard: str = ""
    unless: Callable[[Any], bool] | None = None
    unchecked: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.checks and not self.no_guard:
            raise ValueError("an API needs a check, or in no_guard the reason why it has none")
        if self.guard is not None and (self.no_guard or self.unless is not None):
            raise ValueError("an API with a guard of its own has neither no_guard nor unless")
        if self.guard is None and not self.no_guard:
            denials = [check.denial for check in self.checks]
            if denials.count(Denial.REFUSES_ITEM) > 1:
                raise ValueError("only a guard of its own can check items for two rights")


@dataclass(frozen=True, slots=True)
class Api:
    """`access` has no default: an API without its checks cannot be made."""

    key: ApiKey
    versions: VersionRange
    handle: Handler
    access: Access
    # The first version in ApiVersions, if it is lower than the first served version.
    shown_from: int | None = None
    # Set if the response has a result for each item of the request. Large requests are split by
    # item, and refused ones get the error code for each item.
    items: Sequence[Items] = ()
    # The handler is called even if each item is refused, because it may refuse the whole request.
    is_asked_without_items: bool = False
    # The request consists mostly of records. Its size does not indicate its processing time, and it
    # is processed even if the client disconnects.
    carries_records: bool = False
    charge: Charge = Charge.TIME_ALONE
    # For MUTATIONS: older versions are not refused but throttled (KIP-599).
    first_strict_version: int = 0
    # A member of a KRaft quorum forwards the request to the active controller.
    is_forwardable: bool = False
    # Refusals are made from the response's schema. `echoed` fields are copied from the request,
    # `fixed` fields are neither the schema's default nor blank. `refuse_by` makes refusals that
    # cannot be derived from a schema.
    echoed: Sequence[str] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    refuse_by: Refuse | None = None
    renamed: Mapping[ErrorCode, Renamed] = field(default_factory=dict)
    repetition: Repetition | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.access, Access):
            raise TypeError(
                f"an API has no access checks api={self.key.name} hint='declare its Access'"
            )

    @property
    def shown_versions(self) -> VersionRange:
        """The versions in the ApiVersions response."""
        if self.shown_from is None:
            return self.versions
        return VersionRange(self.shown_from, self.versions.max)

    def shown_code(self, version: int, code: ErrorCode) -> ErrorCode:
        """`code`, or the code that versions without it get instead."""
        renamed = self.renamed.get(code)
        return renamed.before if renamed and version < renamed.first_version else code

    def refuse(
        self, context: RequestContext, request: Any, code: ErrorCode, message: str | None = None
    ) -> Any:
        """The response to a request that is refused as a whole."""
        version = context.header.api_version
        code = self.shown_code(version, code)
        if self.refuse_by is not None:
            return self.refuse_by(context, request, code)
        return refusing_response(
            response_class(context.header.api_key, version),
            request,
            self._refusal(request, code, message),
            self.items,
        )

    def refuse_items(
        self, context: RequestContext, request: Any, code: ErrorCode, message: str | None = None
    ) -> Any:
        """The response in which each item is refused, for an API that answers items one by one."""
        version = context.header.api_version
        return refused_items(
            response_class(context.header.api_key, version),
            request,
            self._refusal(request, self.shown_code(version, code), message),
            self.items,
        )

    def _refusal(self, request: Any, code: ErrorCode, message: str | None) -> Refusal:
        fixed = {name: getattr(request, name) for name in self.echoed if hasattr(request, name)}
        return Refusal(code, message, {**self.fixed, **fixed})


def with_handlers(apis: Mapping[int, Api], handlers: Mapping[int, Handler]) -> Mapping[int, Api]:
    """The APIs, some of them with other handlers."""
    replaced = {key: replace(apis[key], handle=handle) for key, handle in handlers.items()}
    return {**apis, **replaced}


async def handled(response: Any) -> Any:
    """The response, where a handler returned it or an awaitable of it."""
    return await response if hasattr(response, "__await__") else response
