"""Archives of a program's loaded classes, which JVMs map into memory instead of reading the jars.

This is Java's application class-data sharing. A first run writes the archive at its end, and later
runs with the same jars in the same place use it. A JVM with an archive that does not fit runs
without it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from oracle.jars import CACHE_DIRECTORY, cache_lock, require_command


def archive_options(jars: Path, write: Callable[[tuple[str, ...]], None]) -> tuple[str, ...]:
    """Java's options that use the archive of a class path that begins with `jars`.

    If there is no archive yet, this calls `write` with the options of the run that makes it. That
    run must end by itself or by SIGTERM. `write` is called once in a checkout: a run without a
    result leaves an empty file, and then nothing is shared.
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
