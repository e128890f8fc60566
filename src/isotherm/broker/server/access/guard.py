"""The type of a guard, which replaces an API's handler if access is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api

# Gets the API with its own handler; returns a response or an awaitable, as the handler does.
Guard: TypeAlias = Callable[[Authorizer, Api, RequestContext, Any], Any]
