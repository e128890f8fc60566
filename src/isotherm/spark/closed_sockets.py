"""Keeps the daemon of Python workers quiet about sockets that Spark has closed.

Spark closes a worker's socket while the worker writes when a query with a limit has its rows, and
after a minute without work. The worker then ends, and `pyspark.daemon` prints a traceback
(BrokenPipeError) on the terminal of a query that has succeeded. Errors of the work itself do not
get there: workers send them to Spark.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace
from typing import Any

_SPARKS_DAEMON = "pyspark.daemon"


def be_quiet(daemon: Any) -> None:
    """Let the module `daemon`, which is or has the code of `pyspark.daemon`, print no traceback of
    a closed socket. All other tracebacks stay."""
    daemon.traceback = SimpleNamespace(print_exc=_print_exc, format_exc=traceback.format_exc)


def be_quiet_in_a_worker() -> None:
    """`be_quiet` if this process is a worker of Spark's own daemon: sessions of users have it,
    and planners.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == _SPARKS_DAEMON:
        be_quiet(main)


def _print_exc() -> None:
    if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
        traceback.print_exc()
