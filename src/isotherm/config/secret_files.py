"""Warns of files with secrets that other users of the machine may read, and of data that they
may change.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH
_WRITABLE_BY_ALL = stat.S_IWOTH


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


def warn_of_writers(folder: Path) -> None:
    """Log a warning if any user of the machine may write to the folder."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return  # it is made later, with the modes that the process has set
    if mode & _WRITABLE_BY_ALL:
        logger.warning(
            "a data directory can be changed by others path=%s mode=%03o hint='chmod o-w'",
            folder,
            stat.S_IMODE(mode),
        )
