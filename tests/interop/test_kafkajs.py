"""kafkajs 2.2.4, the most used client of node.js; its table of versions ended in 2023."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from isotherm.testing.embedded_broker import EmbeddedBroker

PACKAGE = "kafkajs@2.2.4"
SCRIPT = Path(__file__).parent / "kafkajs" / "round_trip.js"
TOOLS = Path(__file__).parents[2] / ".tools"
INSTALL_TIMEOUT_S = 120
RUN_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """A folder that has kafkajs in it."""
    folder = TOOLS / PACKAGE
    if (folder / "node_modules" / "kafkajs" / "package.json").exists():
        return folder / "node_modules"
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    installed = subprocess.run(
        ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", folder, PACKAGE],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_TIMEOUT_S,
    )
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install {PACKAGE}: {installed.stderr[-500:]}")
    return folder / "node_modules"


def test_application_writes_reads_and_asks(broker: EmbeddedBroker, node_modules: Path) -> None:
    ran = subprocess.run(
        ["node", str(SCRIPT), broker.bootstrap_servers, "from-node"],
        env={
            **os.environ,
            "NODE_PATH": str(node_modules),
            "KAFKAJS_NO_PARTITIONER_WARNING": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr
    saw = json.loads(ran.stdout)
    assert saw["records"] == [
        {"key": "a", "value": "committed", "headers": {"where": "here"}, "offset": 0},
        {"key": "a", "value": None, "headers": {}, "offset": 1},
        # Offset 2 marks the commit, 3 was aborted, 4 marks that.
        *({"key": None, "value": f"x{n}", "headers": {}, "offset": 4 + n} for n in (1, 2, 3)),
    ]
    assert saw["end"] == saw["committed"] == 8
    assert "group-of-from-node" in saw["groups"]
    assert "from-node" not in saw["topics"]
