"""kio without hypothesis: import this before any message of kio.

kio registers its types with hypothesis if that is installed, as it is for a user's own tests.
hypothesis imports pytest in turn: together they take a fifth of a broker's start, and 18 MB. While
kio is imported, `sys.modules` says that there is no hypothesis.
"""

from __future__ import annotations

import sys


def _import_primitives() -> None:
    if "hypothesis" in sys.modules:
        return  # The process uses it, and kio may as well.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


_import_primitives()
