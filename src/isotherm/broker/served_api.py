"""An API as its module in `isotherm.broker.apis` declares it: all that the broker knows of it.

Dispatch, the splitting of long requests, quotas and the table that clients are shown go by this
declaration alone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.broker.refusals import Items, Refusal, refusing_response
from isotherm.protocol.api_keys import ApiKey, VersionRange, response_class

# A handler returns the response, None when the client wants no answer, or an awaitable of either.
Handler: TypeAlias = Callable[[RequestContext, Any], Any]
Refuse: TypeAlias = Callable[[RequestContext, Any, ErrorCode], Any]


class Charge(enum.Enum):
    """What a request costs its client's quotas, beside the time that it takes."""

    TIME_ALONE = enum.auto()
    PRODUCED_BYTES = enum.auto()
    FETCHED_BYTES = enum.auto()
    MUTATIONS = enum.auto()


class Renamed(NamedTuple):
    """An error code that versions below `first_version` do not know, and get as `before`."""

    first_version: int
    before: ErrorCode


@dataclass(frozen=True, slots=True)
class Api:
    key: ApiKey
    versions: VersionRange
    handle: Handler
    # The version from which on clients are shown the API, where it is lower than is served.
    shown_from: int | None = None
    # Where the response has an answer for each thing that the request names. Long requests are
    # taken apart there, and what is refused as a whole is refused there.
    items: Sequence[Items] = ()
    # The request is mostly records: its size says nothing of the time that it takes, and what has
    # arrived is worked on though its client be gone.
    carries_records: bool = False
    charge: Charge = Charge.TIME_ALONE
    # Of MUTATIONS: older versions are not refused but wait (KIP-599).
    first_strict_version: int = 0
    # A refusal is made from the response's schema. `echoed` are fields of the request that it
    # repeats, `fixed` are fields that are neither the schema's default nor blank; `refuse_by` makes
    # refusals that no schema tells of.
    echoed: Sequence[str] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    refuse_by: Refuse | None = None
    renamed: Mapping[ErrorCode, Renamed] = field(default_factory=dict)

    @property
    def shown_versions(self) -> VersionRange:
        """What clients are shown."""
        if self.shown_from is None:
            return self.versions
        return VersionRange(self.shown_from, self.versions.max)

    def shown_code(self, version: int, code: ErrorCode) -> ErrorCode:
        """`code` as a version knows it."""
        renamed = self.renamed.get(code)
        return renamed.before if renamed and version < renamed.first_version else code

    def refuse(
        self, context: RequestContext, request: Any, code: ErrorCode, message: str | None = None
    ) -> Any:
        """The answer to a request that fails as a whole: all that it asks for is refused."""
        version = context.header.api_version
        code = self.shown_code(version, code)
        if self.refuse_by is not None:
            return self.refuse_by(context, request, code)
        fixed = {name: getattr(request, name) for name in self.echoed if hasattr(request, name)}
        return refusing_response(
            response_class(context.header.api_key, version),
            request,
            Refusal(code, message, {**self.fixed, **fixed}),
            self.items,
        )
