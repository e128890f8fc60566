"""A newcomer's two tasks, done after CONTRIBUTING.md alone in a copy of the source: an API and a
job. The files that a task writes are those that its row of the page names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

API = '''\
"""GetTelemetrySubscriptions (key 71)."""

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    return context.response(
        {
            "error_code": ErrorCode.none,
            "client_instance_id": request.client_instance_id,
            "subscription_id": 7,
            "accepted_compression_types": (),
            "push_interval": timedelta(minutes=5),
            "telemetry_max_bytes": 0,
            "delta_temporality": True,
            "requested_metrics": (),
        }
    )


API = Api(
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    VersionRange(0, 0),
    handle,
    access=Access(no_guard="it tells nothing of the cluster", unchecked=UNCHECKED),
)
'''
UNCHECKED = '{"client_instance_id": "the client draws its own"}'

ASK = """\
import sys
from pathlib import Path

from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.raw_client import RawClient

with EmbeddedBroker(Path(sys.argv[1])) as broker, RawClient(broker.bootstrap_servers) as client:
    shown = client.ask(ApiKey.API_VERSIONS, 2).api_keys
    answer = client.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0)
    print(len([each for each in shown if each.api_key == 71]), answer.subscription_id)
"""

JOB = '''\
"""Counts the partitions of a metadata topic."""

from isotherm.spark.numbered_tasks import each_of
'''
COMMAND = '''\
"""`isotherm pipeline count`."""

from isotherm.cli.options import AsJson


def count(as_json: AsJson = False) -> None:
    """Count the partitions of a metadata topic."""
    from isotherm.spark.jobs import count as job
'''


class Copy:
    """The package in a folder of its own, and what a process that imports it prints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Links cost less than copies, of the compiled modules too.
        shutil.copytree(ROOT / "src", folder / "src", copy_function=os.symlink)
        self.written: set[str] = set()

    def write(self, path: str, text: str) -> None:
        """A file of the package, named as the page names it."""
        file = self._folder / "src" / "isotherm" / path
        file.unlink(missing_ok=True)
        file.write_text(text)
        self.written.add(path)

    def add_lines(self, path: str, *lines: tuple[str, str]) -> None:
        """Add each text before the first line that begins with another."""
        text = (self._folder / "src" / "isotherm" / path).read_text()
        for before, line in lines:
            assert text.count(f"\n{before}") > 0
            text = text.replace(f"\n{before}", f"\n{line}\n{before}", 1)
        self.write(path, text)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", "from isotherm.cli.main import main; main()", *arguments)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": f"{self._folder / 'src'}:{ROOT}", "COLUMNS": "100"},
            cwd=self._folder,
            check=False,
            capture_output=True,
            text=True,
        )


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def row(task: str) -> list[str]:
    """The cells `write`, `and name it in` and `tests` of a task."""
    (found,) = re.findall(rf"^\| {task} \|(.*)\|$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in found.split(" | ")]


def modules(cells: list[str], placeholder: str, name: str) -> set[str]:
    """The modules of the package that cells name, with a name in place of the placeholder."""
    named = re.findall(r"`([\w/<>]+\.py)`", " ".join(cells))
    return {path.replace(placeholder, name) for path in named}


@pytest.mark.slow
def test_api_is_served_and_without_access_the_broker_does_not_start(
    copy: Copy, tmp_path: Path
) -> None:
    module = "broker/apis/get_telemetry_subscriptions.py"
    copy.write(module, API.replace("UNCHECKED", UNCHECKED))
    copy.add_lines(
        "broker/apis/api_register.py",
        ("    heartbeat,\n", "    get_telemetry_subscriptions,"),
        ("    heartbeat.API,\n", "    get_telemetry_subscriptions.API,"),
    )
    assert copy.written == modules(row("an API")[:2], "<api>", "get_telemetry_subscriptions")
    asked = copy.run("-c", ASK, str(tmp_path / "broker"))
    assert (asked.stderr, asked.stdout) == ("", "1 7\n")

    copy.write(module, API.replace(", unchecked=UNCHECKED", ""))
    assert "`test_access_fields.py`" in row("an API")[2]
    fields = ROOT / "tests/unit/broker/server/requests/test_access_fields.py"
    checked = copy.run("-m", "pytest", "-q", "-p", "no:randomly", str(fields), f"--rootdir={ROOT}")
    assert checked.returncode == 1
    assert "client_instance_id" in checked.stdout

    copy.write(module, re.sub(r"\n *access=.*", "", API))
    refused = copy.run("-c", ASK, str(tmp_path / "broker"))
    assert refused.returncode == 1
    assert "required keyword-only argument: 'access'" in refused.stderr or (
        "required positional argument: 'access'" in refused.stderr
    )


@pytest.mark.slow
def test_job_is_listed_and_shows_its_help(copy: Copy) -> None:
    copy.write("spark/jobs/count.py", JOB)
    copy.write("cli/pipeline_count.py", COMMAND)
    copy.add_lines(
        "cli/pipeline.py",
        ("    pipeline_options,\n", "    pipeline_count,"),
        ("    pipeline_replay.replay:", "    pipeline_count.count: _WRITES_NOTHING,"),
    )
    assert copy.written == modules(row("a job on Spark")[:2], "<job>", "count")
    listed = copy.command("pipeline", "--help")
    assert re.search(r" count +Count the partitions of a metadata topic\.", listed.stdout)
    helped = copy.command("pipeline", "count", "--help")
    assert " --json " in helped.stdout
    ran = copy.command("pipeline", "count")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_page_of_a_job_is_in_the_navigation() -> None:
    """The page says where a job's page goes: each job has it there."""
    assert "`docs/pipeline/<job>.md`" in row("a job on Spark")[1]
    assert "`mkdocs.yml`" in row("a job on Spark")[1]
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    jobs = {
        path.stem.removeprefix("pipeline_")
        for path in (ROOT / "src/isotherm/cli").glob("pipeline_*.py")
        if (ROOT / f"docs/pipeline/{path.stem.removeprefix('pipeline_')}.md").exists()
    }
    assert len(jobs) == 12
    assert {job for job in jobs if f"- pipeline/{job}.md\n" not in navigation} == set()
