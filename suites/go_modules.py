"""Test suites that Go modules carry: their source from the module proxy, and its compiled tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from suites.building import TOOLS, run_step
from suites.results import SuiteUnavailableError


def module_source(folder: Path, *modules: str) -> Path:
    """Where Go keeps the first of the modules, read-only; those of `folder`'s go.mod if none is
    named. SuiteUnavailableError where they cannot be had."""
    if shutil.which("go") is None:
        raise SuiteUnavailableError("go is not installed")
    command = ["go", "mod", "download", "-json", *modules]
    printed = run_step(command, folder, SuiteUnavailableError)
    return Path(json.JSONDecoder().raw_decode(printed)[0]["Dir"])


def writable_copy(source: Path, copy: Path) -> Path:
    """A build may want to write beside the sources, and the module cache is read-only."""
    shutil.copytree(source, copy, copy_function=shutil.copyfile)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def compile_tests(source: Path, package: str, binary: Path, *options: str) -> Path:
    """The compiled tests of a package, put into place as a whole."""
    partial = binary.with_suffix(".partial")
    TOOLS.mkdir(exist_ok=True)
    run_step(["go", "test", "-c", *options, "-o", str(partial), package], source)
    return partial.replace(binary)
