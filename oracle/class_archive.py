"""Archives of the classes that a program loads, which its JVMs map instead of reading them from the jars.

That is application class-data sharing: a first run ends by writing its classes, and every later one with the
same jars in the same place begins with them. A JVM that finds an archive that does not fit goes on without
it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from oracle.jars import CACHE_DIRECTORY, cache_lock, require_command


def archive_options(jars: Path, write: Callable[[tuple[str, ...]], None]) -> tuple[str, ...]:
    """Java's options to begin with the archive of a class path that begins with `jars`.

    Where there is none, `write` is called with the options of the run that writes it, which must end
    by itself or by SIGTERM. It is called once in a checkout: a run that leaves no archive leaves an empty
    one, with which nothing is shared.
    """
    java = Path(require_command("java")).resolve()
    key = f"{jars} {java} {java.stat().st_mtime_ns}"
    path = CACHE_DIRECTORY / f"classes-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa"
    if not path.exists():
        with cache_lock("archive-lock"):
            if not path.exists():
                partial = path.with_suffix(".partial")
                partial.unlink(missing_ok=True)
                write((f"-XX:ArchiveClassesAtExit={partial}",))
                partial.touch()
                os.rename(partial, path)
    if path.stat().st_size == 0:
        return ()
    return (f"-XX:SharedArchiveFile={path}",)
