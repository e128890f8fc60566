"""Environments for tests of the wheel have the packages that it requires, where pip finds them."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support.wheel_environment import install_wheel, required_distributions


def wheel_that_requires(folder: Path, *requirements: str) -> Path:
    wheel = folder / "probe-1-py3-none-any.whl"
    headers = ["Metadata-Version: 2.1", "Name: probe", "Version: 1"]
    headers += [f"Requires-Dist: {requirement}" for requirement in requirements]
    files = {
        "probe.py": "",
        "probe-1.dist-info/METADATA": "\n".join(headers) + "\n",
        "probe-1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "probe-1.dist-info/RECORD": "probe.py,,\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def names(*requirements: str, extras: frozenset[str] = frozenset()) -> list[str]:
    return [
        distribution.name for distribution in required_distributions(list(requirements), extras)
    ]


def test_what_a_requirement_needs_is_required_too() -> None:
    assert {"rich", "markdown-it-py", "mdurl"} <= set(names("rich"))


def test_an_extra_is_required_where_it_is_asked_for() -> None:
    requirement = "rich; extra == 'pages'"
    assert names(requirement) == []
    assert "rich" in names(requirement, extras=frozenset({"pages"}))


@pytest.mark.slow
def test_an_environment_has_what_its_wheel_names_and_nothing_else(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    install_wheel(wheel_that_requires(tmp_path, "mdurl"), environment)

    def imports(name: str) -> bool:
        command = [environment / "bin" / "python", "-I", "-c", f"import {name}"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    assert imports("probe")
    assert imports("mdurl")
    assert not imports("numpy")


@pytest.mark.slow
@pytest.mark.parametrize("requirement", ["no-such-distribution", "mdurl<0"])
def test_a_requirement_that_is_not_met_is_named(tmp_path: Path, requirement: str) -> None:
    wheel = wheel_that_requires(tmp_path, requirement)
    with pytest.raises(AssertionError, match=requirement.partition("<")[0]):
        install_wheel(wheel, tmp_path / "environment")
