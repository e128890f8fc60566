"""The pictures of docs/pipeline show the commands that the pages name, and load nothing."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "pipeline"
DEMO = runpy.run_path(str(ROOT / "examples" / "demo" / "pipeline.py"))
COMMANDS = {job.name: job.command for job in DEMO["JOBS"]}


def test_every_job_has_a_command_on_the_demos_data() -> None:
    from isotherm.cli.pipeline import app

    jobs = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert {*COMMANDS, *DEMO["WITH_A_BROKER"]} == jobs


@pytest.mark.parametrize("job", COMMANDS)
def test_page_shows_the_command_and_a_picture_of_its_output(job: str) -> None:
    page = (PAGES / f"{job}.md").read_text(encoding="utf-8")
    assert f"```console\n$ {COMMANDS[job]}\n```\n" in page
    assert re.search(rf"!\[[^\]]+\]\(pictures/{job}\.svg\)", page)
    picture = (PAGES / "pictures" / f"{job}.svg").read_text(encoding="utf-8")
    letters = "".join(ElementTree.fromstring(picture).itertext()).replace("\xa0", " ")
    assert f"$ {COMMANDS[job]}" in " ".join(html.unescape(letters).split())
    addresses = set(re.findall(r"https?://[^\s\"']+|@import|@font-face", picture))
    assert addresses == {"http://www.w3.org/2000/svg"}
