"""Answers requests with both allowed and denied items, item by item."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code
from isotherm.broker.server.requests.context import HangUpError, RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.server.requests.split_requests import is_refusal, with_field
from isotherm.errors import IsothermError


def handle_allowed(
    api: Api, context: RequestContext, request: Any, refusal_of: Callable[[Any], ErrorCode | None]
) -> Any:
    """Handle the items for which `refusal_of` returns None, and refuse each other item with its
    code.

    The response has the refused items behind the others. Clients do not depend on the order.
    """
    items = next(item for item in api.items if hasattr(request, item.request[0]))
    asked_in, answered_in = items.request[0], items.response[0]
    allowed, refused = [], dict[ErrorCode, list[Any]]()
    for item in getattr(request, asked_in) or ():
        code = refusal_of(item)
        if code is None:
            allowed.append(item)
        else:
            refused.setdefault(code, []).append(item)
    if not refused:
        return api.handle(context, request)

    def joined(response: Any) -> Any:
        if response is not None and is_refusal(response):
            return response
        # The refusals come after the handler. For a produce request with acks=0 a refusal raises
        # HangUpError, after the allowed records are appended.
        for code, these in refused.items():
            part = _refuse(api, context, with_field(request, asked_in, tuple(these)), code)
            if response is None:
                response = part
            else:
                both = (*getattr(response, answered_in), *getattr(part, answered_in))
                response = with_field(response, answered_in, both)
        return response

    if not allowed and not api.is_asked_without_items:
        return joined(None)
    # An error of the handler applies only to the items that it got.
    return then(_handle(api, context, with_field(request, asked_in, tuple(allowed))), joined)


def _handle(api: Api, context: RequestContext, request: Any) -> Any:
    try:
        response = api.handle(context, request)
    except IsothermError as error:
        return _answered(api, context, request, error)
    if isinstance(response, Awaitable):
        return _handled(api, context, request, response)
    return response


async def _handled(
    api: Api, context: RequestContext, request: Any, response: Awaitable[Any]
) -> Any:
    try:
        return await response
    except IsothermError as error:
        return _answered(api, context, request, error)


def _answered(api: Api, context: RequestContext, request: Any, error: IsothermError) -> Any:
    if isinstance(error, HangUpError):
        raise error
    return api.refuse(context, request, error_code(error))


def _refuse(api: Api, context: RequestContext, request: Any, code: ErrorCode) -> Any:
    # An API with its own refusals makes them item by item.
    if api.refuse_by is not None:
        return api.refuse(context, request, code)
    return api.refuse_items(context, request, code)


def then(response: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to a handler's response, now or once it is available."""
    if isinstance(response, Awaitable):
        return _then(response, change)
    return change(response)


async def _then(response: Awaitable[Any], change: Callable[[Any], Any]) -> Any:
    return change(await response)
