"""Files with passwords or private keys: those that other users of the machine may read are warned of."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


def warn_of_readers(path: Path) -> None:
    """A line of the log if others than the owner may read the file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        # Reading it says why.
        return
    if mode & _READABLE_BY_OTHERS:
        logger.warning(
            "a file with secrets can be read by others path=%s mode=%03o hint='chmod 600'",
            path,
            stat.S_IMODE(mode),
        )
