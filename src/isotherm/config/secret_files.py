"""Closes what the process makes to other users of the machine, and warns of files with secrets that
they may read, and of data that they may read or change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH
_WRITABLE_BY_ALL = stat.S_IWOTH
_OPEN_TO_ALL = stat.S_IROTH | stat.S_IXOTH

CLOSED_TO_OTHERS = 0o007
"""The umask, besides the bits that it has. The group's rights are the operator's choice."""


def close_to_others() -> int:
    """Files and folders that the process makes from now on are not for other users of the machine.
    Returns the umask before."""
    before = os.umask(CLOSED_TO_OTHERS)
    os.umask(before | CLOSED_TO_OTHERS)
    return before


@contextlib.contextmanager
def closed_to_others() -> Iterator[None]:
    """See `close_to_others`; for all threads."""
    before = close_to_others()
    try:
        yield
    finally:
        os.umask(before)


def warn_of_readers(path: Path) -> None:
    """Log a warning if users other than the owner may read the file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        # The later attempt to read the file raises, with the reason.
        return
    if mode & _READABLE_BY_OTHERS:
        logger.warning(
            "a file with secrets can be read by others path=%s mode=%03o hint='chmod 600 %s'",
            path,
            stat.S_IMODE(mode),
            path,
        )


def warn_of_open_folder(folder: Path) -> None:
    """Log a warning if any user of the machine may write to the folder, or read files in it.
    Below a folder that they may not enter, they may do neither."""
    try:
        mode = folder.stat().st_mode
        if not all(parent.stat().st_mode & stat.S_IXOTH for parent in folder.resolve().parents):
            return
    except OSError:
        return  # it is made later, with the modes that the process has set
    if mode & _WRITABLE_BY_ALL:
        deed = "changed"
    elif mode & _OPEN_TO_ALL:
        deed = "read"
    else:
        return
    logger.warning(
        "a data directory can be %s by others path=%s mode=%03o hint='chmod o-rwx %s'",
        deed,
        folder,
        stat.S_IMODE(mode),
        folder,
    )
