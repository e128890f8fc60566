"""The modules assigned to an extra are those of the packages that pyproject.toml lists for it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from isotherm import extras, pytest_plugin
from isotherm.extras import (
    BROKER,
    CONSOLE,
    EXTRA_OF_MODULE,
    SPARK,
    TIER,
    install_command,
    missing_extra,
)

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
# Extras include others. A package belongs to the first of these that lists it.
SMALLEST_FIRST = (TIER, BROKER, SPARK, CONSOLE)


def distributions_of(extra: str) -> list[str]:
    requirements = map(Requirement, PYPROJECT["project"]["optional-dependencies"][extra])
    return [canonicalize_name(requirement.name) for requirement in requirements]


def test_each_distribution_of_an_extra_has_its_module() -> None:
    expected: dict[str, str] = {}
    for extra in SMALLEST_FIRST:
        for name in distributions_of(extra):
            expected.setdefault(name, extra)
    del expected["isotherm"]
    found = packages_distributions()
    actual = {
        canonicalize_name(name): extra
        for module, extra in EXTRA_OF_MODULE.items()
        for name in found[module]
    }
    assert actual == expected


@pytest.mark.parametrize("extra", [BROKER, SPARK, CONSOLE])
def test_each_has_what_reads_a_tier(extra: str) -> None:
    requirements = map(Requirement, PYPROJECT["project"]["optional-dependencies"][extra])
    assert {"isotherm"} == {
        requirement.name for requirement in requirements if requirement.extras == {TIER}
    }


def test_a_submodule_names_the_package_and_the_extra_that_was_asked_for() -> None:
    error = ModuleNotFoundError("No module named 'numpy'", name="numpy.typing")
    by_module = f"this needs numpy, which is not installed: run {install_command(TIER)}"
    assert str(missing_extra(error)) == by_module
    assert str(missing_extra(error, BROKER)) == by_module.replace("[tier]", "[broker]")


def test_a_checkout_is_installed_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[2]
    assert install_command(SPARK) == f"pip install -e '{root}[spark]'"
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages/isotherm/extras.py"))
    assert install_command(SPARK) == "pip install 'isotherm[spark]'"


@pytest.mark.parametrize("module", ["isotherm.gone", "json.gone", None])
def test_a_module_of_no_extra_is_missing_for_another_reason(module: str | None) -> None:
    assert missing_extra(ModuleNotFoundError("gone", name=module)) is None


@pytest.mark.parametrize("module", sorted(EXTRA_OF_MODULE))
def test_modules_exist(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


def test_fixture_of_a_broker_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "isotherm.testing.embedded_broker", raising=False)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(pytest.UsageError, match=re.escape(install_command(BROKER))):
        pytest_plugin._embedded_broker()


def test_spark_still_finds_the_source_which_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['zstandard'] = None\n"
        "from pyspark_isotherm import DefaultSource; print(DefaultSource.name()); DefaultSource({})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "isotherm\n"
    assert done.stderr.splitlines()[-1].endswith(install_command(SPARK))
