"""Warns of files with passwords or private keys that other users of the machine may read."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


def warn_of_readers(path: Path) -> None:
    """Log a warning if users other than the owner may read the file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        # The later attempt to read the file raises, with the reason.
        return
    if mode & _READABLE_BY_OTHERS:
        logger.warning(
            "a file with secrets can be read by others path=%s mode=%03o hint='chmod 600'",
            path,
            stat.S_IMODE(mode),
        )
