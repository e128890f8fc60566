"""Where compiled kernels are kept: settled before the first of them is imported.

Numba keeps them beside their source, else in the user's cache folder, and raises when it can write
to neither. On a cluster that is usual: an image that is read-only, a user without a home.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

# The XDG specification's; Numba follows it for sources in zips as well, unlike NUMBA_CACHE_DIR.
_CACHE_HOME = "XDG_CACHE_HOME"


def settle_kernel_cache() -> None:
    """Have this process compile into a folder of its own when Numba would find none.

    Has to be called before kernels are imported.
    """
    caches = Path(os.environ.get(_CACHE_HOME) or Path("~/.cache").expanduser())
    if _is_any_writable([Path(__file__).parent / "__pycache__", caches / "numba"]):
        return
    # A name that nobody can guess: who can write kernels there decides what this process runs.
    working = Path.cwd()
    parent = working if os.access(working, os.W_OK) else None
    os.environ[_CACHE_HOME] = tempfile.mkdtemp(prefix="isotherm-cache-", dir=parent)


def _is_any_writable(folders: Iterable[Path]) -> bool:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return True
    return False
