"""One request over https and its answer, bounded in time and size.

Only the configured address is contacted: proxies of the environment and redirects are not used.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

TIMEOUT_S = 30.0
"""Timeout of each wait: for the connection, and for the next bytes."""

SIZE_MAX = 1024 * 1024


def https_answer(
    url: str,
    context: ssl.SSLContext,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    size_max: int = SIZE_MAX,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """The answer to GET, or to POST if there is a body. The caller has checked that `url` is https;
    http is only for public data.

    Raises OSError for a failure or another status than 2xx, and ValueError for an answer above
    `size_max` bytes.
    """
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirect()
    )
    request = urllib.request.Request(url, body, dict(headers or {}))  # noqa: S310 - it was checked
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return bounded(response.read(size_max + 1), size_max)
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"the answer is HTTP status {error.code}") from error
    except HTTPException as error:
        raise OSError(f"the answer is not HTTP: {error!r}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **keywords: Any) -> None:
        return None


def bounded(text: bytes, size_max: int = SIZE_MAX) -> bytes:
    """`text`. Raises ValueError if it is larger than `size_max`."""
    if len(text) > size_max:
        raise ValueError(f"more than {size_max} bytes")
    return text
