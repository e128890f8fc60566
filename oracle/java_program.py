"""Our own Java programs on the jars that a pom names, compiled once and kept with the jars."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from oracle.jars import CACHE_DIRECTORY, require_command, resolve
from oracle.program import Program

COMPILE_TIMEOUT_S = 300

# Frameworks that serialize closures look into the collections of Java itself.
OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx512m",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


def class_path(pom_path: Path, sources: Iterable[Path]) -> str:
    """The jars of `pom_path` and the classes of `sources`.

    OracleUnavailableError if a tool or jar is missing; AssertionError with the compiler's output if
    a source does not compile.
    """
    jars = resolve(pom_path, pom_path.stem)
    return f"{compiled(jars, list(sources))}{os.pathsep}{jars}/*"


def compiled(jars: Path, sources: list[Path]) -> Path:
    """The folder of the classes of `sources`, compiled the first time. Raises as `class_path`."""
    digest = hashlib.sha256(b"".join([jars.name.encode(), *(s.read_bytes() for s in sources)]))
    directory = CACHE_DIRECTORY / f"classes-{digest.hexdigest()[:12]}"
    if directory.is_dir():
        return directory
    partial = directory.with_suffix(f".{os.getpid()}")
    command = [require_command("javac"), "-Xlint:all,-processing,-classfile,-path,-serial"]
    command += ["-Werror", "-d", str(partial), "-classpath", f"{jars}/*", *map(str, sources)]
    compiled = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=COMPILE_TIMEOUT_S
    )
    assert compiled.returncode == 0, compiled.stderr
    # Another process may have been first, with the same classes.
    with contextlib.suppress(OSError):
        os.rename(partial, directory)
    shutil.rmtree(partial, ignore_errors=True)
    return directory


class JavaProgram(Program):
    """A process of one compiled Java class. Its temporary files are beside its log."""

    def __init__(self, classes: str, main: str, *arguments: str, log_path: Path) -> None:
        command = [require_command("java"), *OPTIONS, f"-Djava.io.tmpdir={log_path.parent}"]
        super().__init__([*command, "--class-path", classes, main, *arguments], log_path)
