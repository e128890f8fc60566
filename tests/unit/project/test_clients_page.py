"""docs/clients.md says what is run: versions, counts and files are those of the tests."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
INTEROP = ROOT / "tests" / "interop"


def rows() -> dict[str, list[str]]:
    """The first table: by folder of the list, the cells before it."""
    found = {}
    for line in PAGE.splitlines():
        linked = re.search(r"\]\(\.\./tests/interop/(\S+)\) \|$", line)
        if linked:
            found[linked[1]] = [cell.strip() for cell in line.split("|")[1:-1]]
    return found


def test_every_pass_list_is_on_the_page_with_its_length() -> None:
    counted = {
        str(path.parent.relative_to(INTEROP)): len(path.read_text(encoding="utf-8").split())
        for path in INTEROP.rglob("passes.txt")
    }
    assert {folder: int(cells[2]) for folder, cells in rows().items()} == counted


def test_versions_are_those_that_are_installed_or_asked_for() -> None:
    versions = {folder: cells[1] for folder, cells in rows().items()}
    for folder, package in (
        ("librdkafka", "confluent-kafka"),
        ("kafka_python", "kafka-python"),
        ("aiokafka", "aiokafka"),
    ):
        assert versions[folder] == f"{package} {importlib.metadata.version(package)}"
    node = (INTEROP / "test_node_clients.py").read_text(encoding="utf-8")
    assert f"kafkajs@{versions['kafkajs'].split()[1]}" in node
    assert f"@platformatic/kafka@{versions['platformatic_kafka']}" in node
    kgo = (INTEROP / "test_franz_go.py").read_text(encoding="utf-8")
    assert f'VERSION = "{versions["franz_go"].split()[1]}"' in kgo
    kadm = (INTEROP / "franz_go" / "admin" / "go.mod").read_text(encoding="utf-8")
    assert f"kadm {versions['franz_go/admin'].split()[1]}" in kadm
    oracle = (ROOT / "oracle" / "pom.xml").read_text(encoding="utf-8")
    assert f"<kafka.version>{versions['kafka_java'].split()[1]}<" in oracle


def test_files_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(tests/\S+\.py)`", PAGE))
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()
