"""An environment with only a wheel and the dependencies that it names.

Dependencies are linked from the environment that runs the tests, because unpacking them again takes
longer than the tests. pip checks that they are complete: it installs the wheel without an index, so
it fails if a requirement is missing or has another version.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TIMEOUT_S = 600


def build_wheel(project: Path, folder: Path) -> Path:
    """The wheel of `project`, in `folder`, which has no other."""
    # Uses this environment's hatchling: an isolated build would download it each time.
    _run("build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project))
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_wheel(wheel: Path, environment: Path, extras: frozenset[str] = frozenset()) -> None:
    """Make `environment`, which has the wheel with these extras."""
    venv.create(environment)
    for required_distribution in required_distributions(_requirements_of(wheel), extras):
        _link(required_distribution, environment)
    name = wheel.name.partition("-")[0]
    what = f"{name}[{','.join(sorted(extras))}] @ {wheel.as_uri()}"
    python = str(environment / "bin" / "python")
    # No bytecode for everything: most of it is never imported, and Python compiles imported modules
    # once.
    _pip("--python", python, "install", "--no-compile", "--no-index", what)


def required_distributions(
    requirements: list[str], extras: frozenset[str] = frozenset()
) -> list[Distribution]:
    """The installed distributions that satisfy `requirements`, and their own dependencies.

    Distributions that are not installed here are left out: pip names them when it installs the
    wheel.
    """
    found: dict[tuple[str, str], Distribution | None] = {}
    waiting = list(_applicable(requirements, extras))
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        installed = _installed(name)
        found[name, extra] = installed
        if installed is not None:
            waiting += _applicable(installed.requires or [], frozenset({extra}))
    by_name = {name: each for (name, _), each in found.items() if each is not None}
    return [by_name[name] for name in sorted(by_name)]


def _applicable(requirements: list[str], extras: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The names that these requirements ask for here, each with `` and with its own extras."""
    for requirement in map(Requirement, requirements):
        markers = requirement.marker
        if markers is None or any(markers.evaluate({"extra": each}) for each in {"", *extras}):
            name = canonicalize_name(requirement.name)
            yield from ((name, each) for each in {"", *requirement.extras})


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except ImportError:
        return None


def _requirements_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    return headers.get_all("Requires-Dist", [])


def _link(installed: Distribution, environment: Path) -> None:
    prefix = Path(sysconfig.get_path("data"))
    for file in installed.files or ():
        source = Path(os.path.normpath(str(installed.locate_file(file))))
        if not source.exists():
            continue  # bytecode that pip lists and something removed
        target = environment / source.relative_to(prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except FileExistsError:
            pass  # of two distributions, for example a shared `tests` package
        except OSError:  # another file system
            shutil.copy2(source, target)


def _pip(*arguments: str) -> None:
    _run("pip", "--quiet", "--disable-pip-version-check", *arguments)


def _run(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
