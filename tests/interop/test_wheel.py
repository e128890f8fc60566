"""The wheel and the sdist are the same bytes wherever and whenever they are built, and describe
themselves.

So a release can be checked by building it again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from isotherm import __version__

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "packaging", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
URL = "https://forge.invalid/owner/isotherm"
BUILD_TIMEOUT_S = 300


def built(sources: Path, url: str | None) -> list[Path]:
    """An sdist, and the wheel built from it."""
    target = sources / "built"
    environment = {k: v for k, v in os.environ.items() if k != "ISOTHERM_PROJECT_URL"}
    if url is not None:
        environment["ISOTHERM_PROJECT_URL"] = url
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(sources)],
        check=True, timeout=BUILD_TIMEOUT_S, env=environment,
    )  # fmt: skip
    return sorted(target.iterdir())


def copy_of_sources(folder: Path, *, modified_s: int, mode: int) -> Path:
    """A copy of the sources, with these modification times and modes of all files."""
    for name in SOURCES:
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, folder / name)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)
            os.utime(path, (modified_s, modified_s))
    return folder


def metadata_of(wheel: Path) -> tuple[dict[str, str], list[str], str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        message = HeaderParser().parsestr(archive.read(name).decode())
    return dict(message.items()), message.get_all("Project-URL", []), message.get_payload()


@pytest.mark.slow
def test_sdist_and_wheel_are_the_same_bytes_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "a longer way to the second"
    for folder in (first, second):
        folder.mkdir()
    copy_of_sources(first, modified_s=1_600_000_000, mode=0o644)
    copy_of_sources(second, modified_s=1_750_000_000, mode=0o600)
    ours, again = built(first, URL), built(second, URL)
    assert [each.name for each in ours] == [each.name for each in again]
    assert ours[0].name == f"isotherm-{__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(ours[0]).namelist()
    assert names == zipfile.ZipFile(again[0]).namelist()
    for one, other in zip(ours, again, strict=True):
        digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (one, other)}
        assert len(digests) == 1, one.name

    headers, urls, description = metadata_of(ours[0])
    assert headers["Version"] == __version__
    assert f"Changelog, {URL}/blob/v{__version__}/CHANGELOG.md" in urls
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert links
    assert all(link.startswith(f"{URL}/blob/v{__version__}/") for link in links)
    prefix = f"{URL}/blob/v{__version__}/"
    assert [link for link in links if not (ROOT / link.removeprefix(prefix)).exists()] == []


def test_description_has_no_links_where_the_project_has_no_address(tmp_path: Path) -> None:
    hook = ROOT / "packaging" / "description.py"
    program = f"import runpy; print(runpy.run_path({str(hook)!r})['for_index'](input(), None))"
    readme = "See ![a](docs/a.png)[b](docs/b.md), [c](https://host/c) and [d](#d)."
    shown = subprocess.run(
        [sys.executable, "-c", program], input=readme, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "See b, [c](https://host/c) and [d](#d).\n"


def test_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^\]]+)\]", text, re.MULTILINE)
    assert next(version for version in versions if version != "Unreleased") == __version__


def test_versions_of_python_are_the_classifiers_and_the_documented() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [c.rpartition(" ")[2] for c in project["classifiers"] if " Python :: 3." in c]
    *first, last = versions
    page = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    assert f"Python {', '.join(first)} or {last} on Linux" in page


def test_sdist_has_what_a_wheel_is_built_from(tmp_path: Path) -> None:
    """Also without a variable of the environment."""
    sources = copy_of_sources(tmp_path, modified_s=1_700_000_000, mode=0o644)
    sdist, wheel = sorted(built(sources, None), key=lambda each: each.suffix)
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/README.md") for name in archive.getnames())
    assert wheel.suffix == ".whl"
