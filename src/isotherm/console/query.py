"""Parameters of requests. Each function raises HTTPException with 400, and says what is allowed."""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException
from starlette.requests import Request

from isotherm.console.openapi import NUMBER_MAX

_INTEGER = re.compile(r"-?[0-9]{1,19}")


def text(request: Request, name: str) -> str:
    """A parameter of the query; "" without it. Every parameter is read through it."""
    texts = request.query_params.getlist(name)
    if len(texts) > 1:
        raise HTTPException(400, f"{name} is given {len(texts)} times: give it once")
    return texts[0] if texts else ""


def number(
    request: Request, name: str, default: int, *, least: int = 0, most: int = NUMBER_MAX
) -> int:
    given = optional_number(request, name, least=least, most=most)
    return default if given is None else given


def optional_number(
    request: Request, name: str, *, least: int = 0, most: int = NUMBER_MAX
) -> int | None:
    content = text(request, name)
    if name not in request.query_params:
        return None
    # Only these digits: `int` also reads spaces, underscores and digits of other scripts.
    if _INTEGER.fullmatch(content) is None or not least <= int(content) <= most:
        raise HTTPException(400, f"{name} must be a whole number from {least} to {most}")
    return int(content)
