"""Lines of librdkafka on stderr that are not of the client under test.

A client that an earlier test of the process has left behind writes there when its broker ends, and
again at each attempt to connect, until the garbage collector finds it.
"""

from __future__ import annotations

import re

_LINE = re.compile(r"%\d\|[0-9.]+\|[A-Z]+\|rdkafka#\S+ \[thrd:(?:\w+://)?([^/\]]*)")


def without_other_clients(errors: str, own: str) -> str:
    """`errors` without the lines of clients of brokers whose addresses are not in `own`."""
    lines = errors.splitlines(keepends=True)
    return "".join(line for line in lines if not _is_of_another(line, own))


def _is_of_another(line: str, own: str) -> bool:
    match = _LINE.match(line)
    return match is not None and ":" in match[1] and match[1] not in own
