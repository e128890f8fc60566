"""The form of a guard: what stands in for an API's handler where access is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from isotherm.broker.access.authorizer import Authorizer
from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.served_api import Api

# Given the API with its own handler; returns what that would return: a response or an awaitable.
Guard: TypeAlias = Callable[[Authorizer, Api, RequestContext, Any], Any]
