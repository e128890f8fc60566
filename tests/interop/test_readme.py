"""The README's tours, run as they stand: every command and every program in them.

Only the address differs: a free port instead of 9092.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from isotherm.testing.local_servers import free_ports

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(<!-- background -->\n)?```(sh|python)([^\n]*)\n(.*?)```", re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_ANSWER_TRIES = 100
_TIERING_TRIES = 100


class Block(NamedTuple):
    language: str
    text: str
    in_background: bool


def tours() -> dict[str, list[Block]]:
    """Section -> its blocks that are to be run; `make` targets are run by themselves."""
    parts = _HEADING.split((ROOT / "README.md").read_text(encoding="utf-8"))
    sections = zip(parts[1::2], parts[2::2], strict=True)
    return {
        title: [
            Block(language, text, bool(background))
            for background, language, info, text in _BLOCK.findall(body)
            if "norun" not in info and not text.startswith("make ")
        ]
        for title, body in sections
    }


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


class Shell:
    def __init__(self, workspace: Path, port: int) -> None:
        self.workspace = workspace
        self.address = f"localhost:{port}"
        self.environment = {
            **os.environ,
            "KAFKA_LISTENERS": f"PLAINTEXT://{self.address}",
            "ISOTHERM_BOOTSTRAP_SERVER": self.address,
        }

    def command(self, block: Block) -> list[str]:
        text = block.text.replace("localhost:9092", self.address)
        text = text.replace("/ABSOLUTE/PATH", str(self.workspace))
        if block.language == "python":
            return [sys.executable, "-c", text]
        return ["bash", "-euo", "pipefail", "-c", text]

    def run(self, block: Block) -> str:
        done = subprocess.run(
            self.command(block),
            cwd=self.workspace,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, block: Block) -> subprocess.Popen[bytes]:
        # `exec` makes the broker the child itself, so that it gets the signal.
        command = self.command(block._replace(text=f"exec {block.text}"))
        with (self.workspace / "background.log").open("wb") as log:
            return subprocess.Popen(
                command, cwd=self.workspace, env=self.environment, stdout=log, stderr=log
            )

    def wait_for_broker(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        for _ in range(_ANSWER_TRIES):
            try:
                admin.list_topics(timeout=0.5)
            except Exception:
                continue
            return
        pytest.fail((self.workspace / "background.log").read_text())

    def wait_for_remote_segments(self, topic: str) -> None:
        listing = Block("sh", f".venv/bin/isotherm remote segments {topic} --json", False)
        for _ in range(_TIERING_TRIES):
            rows = [json.loads(line) for line in self.run(listing).splitlines()]
            if any(row.get("state") == "COPY_SEGMENT_FINISHED" for row in rows):
                return
        pytest.fail("nothing was copied to the remote tier")


@pytest.mark.spark
@pytest.mark.slow
def test_tours_of_the_readme_work_word_for_word(workspace: Path) -> None:
    shell = Shell(workspace, free_ports(1)[0])
    python_tour, operator_tour, spark_tour = (
        blocks for title, blocks in tours().items() if title.startswith("Five minutes")
    )
    assert python_tour[0].in_background
    broker = shell.start(python_tour[0])
    try:
        shell.wait_for_broker()
        outputs = [shell.run(block) for block in python_tour[1:]]
        assert "0: 1\n1: 2\n2: 3\n" in outputs[0]
        assert "b'1', b'2', b'3'" in outputs[1]
        shell.wait_for_remote_segments("numbers")
        for block in operator_tour:
            assert shell.run(block).strip()
        assert "count(1)=300001" in shell.run(spark_tour[0])
    finally:
        broker.terminate()
        assert broker.wait(20) == 0


def test_every_tour_has_commands_to_run() -> None:
    found = tours()
    assert sum(title.startswith("Five minutes") for title in found) == 3
    assert all(found[title] for title in found if title.startswith("Five minutes"))
