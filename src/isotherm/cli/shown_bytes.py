"""The printed forms of keys and values, which may be any bytes.

JSON has them exactly, as text or as base64, and says which. A terminal gets text without control
characters.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Any

UTF_8, BASE64 = "utf-8", "base64"
# A terminal obeys control characters: they move its cursor, and change its title. Line ends and
# tabs stay.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def json_fields(name: str, data: bytes | None, *, as_base64: bool = False) -> dict[str, Any]:
    """The field of this name, and NAME_encoding: how its text becomes the bytes again, None for
    null.
    """
    text, encoding = _encoded(data, as_base64)
    return {name: text, f"{name}_encoding": encoding}


def json_headers(
    headers: Iterable[tuple[str, bytes | None]], *, as_base64: bool = False
) -> list[dict[str, Any]]:
    """A list of objects, as several headers may have one name."""
    rows = []
    for name, data in headers:
        text, encoding = _encoded(data, as_base64)
        rows.append({"key": name, "value": text, "encoding": encoding})
    return rows


def _encoded(data: bytes | None, as_base64: bool) -> tuple[str | None, str | None]:
    if data is None:
        return None, None
    if not as_base64:
        try:
            return data.decode(), UTF_8
        except UnicodeDecodeError:
            pass  # no text has these bytes
    return base64.b64encode(data).decode("ascii"), BASE64


def terminal_text(data: bytes) -> str:
    r"""The bytes as text for a person: \xNN for what is not UTF-8, and for control characters."""
    text = data.decode("utf-8", errors="backslashreplace")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
