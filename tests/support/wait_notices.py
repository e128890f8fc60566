"""Lines by which a command says that it still waits, on a slow machine before any answer."""

from __future__ import annotations

_NOTICES = ("still waiting", "still trying")


def without_wait_notices(errors: str) -> str:
    lines = errors.splitlines(keepends=True)
    return "".join(line for line in lines if not any(notice in line for notice in _NOTICES))
