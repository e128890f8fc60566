"""docs/clients.md agrees with the tests: versions, counts and files are those that run."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
INTEROP = ROOT / "tests" / "interop"


def rows() -> dict[str, list[str]]:
    """The cells of the first table before its last, by the folder that the last cell links to."""
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
    for folder, module in (
        ("sarama", "sarama"),
        ("kafka_go", "kafka_go"),
        ("librdkafka_suite", "librdkafka"),
        ("librdkafka_kip848", "librdkafka"),
    ):
        source = (ROOT / "suites" / f"{module}.py").read_text(encoding="utf-8")
        assert f'VERSION = "{versions[folder].split()[1]}"' in source
    kadm = (INTEROP / "franz_go" / "admin" / "go.mod").read_text(encoding="utf-8")
    assert f"kadm {versions['franz_go/admin'].split()[1]}" in kadm
    oracle = (ROOT / "oracle" / "pom.xml").read_text(encoding="utf-8")
    assert f"<kafka.version>{versions['kafka_java'].split()[1]}<" in oracle


def test_files_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(tests/\S+\.py)`", PAGE))
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()


def frameworks() -> dict[str, str]:
    """The table of frameworks: versions by the first word of the row."""
    section = PAGE.split("## Frameworks under kills")[1].split("\n## ")[0]
    table = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ")]
    return {name.split()[0].strip(","): version.strip() for name, version in table[1:]}


def test_versions_of_frameworks_are_those_that_are_asked_for() -> None:
    def asked(pom: str, name: str) -> str:
        text = (INTEROP / "frameworks" / f"{pom}.xml").read_text(encoding="utf-8")
        found = re.search(f"<{name}.version>(.+)</", text)
        assert found is not None
        return found[1]

    def installed(name: str) -> str:
        text = (INTEROP / "frameworks" / f"{name}.txt").read_text(encoding="utf-8")
        return text.splitlines()[0].split("==")[1]

    kafka = asked("kafka", "kafka")
    assert frameworks() == {
        "Kafka": kafka,
        "Spring": asked("spring", "spring-kafka"),
        "Flink": f"{asked('flink', 'flink')}, connector {asked('flink', 'connector')}",
        "Connect": kafka,
        "MirrorMaker": kafka,
        "Quix": installed("quix"),
        "Faust": installed("faust"),
        "Bytewax": installed("bytewax"),
    }


def test_records_and_kills_of_frameworks_are_those_of_their_tests() -> None:
    harness = (INTEROP / "frameworks" / "conftest.py").read_text(encoding="utf-8")
    loads = [
        (f"{int(records):,}", kills)
        for records, kills in re.findall(r"= Load\(records=(\S+), kills=(\d+)", harness)
    ]
    page = " ".join(PAGE.split())
    stated = re.findall(r"([\d,]+) records(?: of 500 keys,| and) (\d+) kills", page)
    assert sorted(stated) == sorted(loads)


def test_suites_are_counted_as_their_lists_say() -> None:
    stated = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 6 and cells[1].isdigit():
            stated[cells[0]] = [int(cell) for cell in cells[1:]]
    counted = {}
    for path in INTEROP.rglob("kafka.txt"):
        cases = dict(
            reversed(line.split(" ")) for line in path.read_text(encoding="utf-8").splitlines()
        )
        passes = set(path.with_name("passes.txt").read_text(encoding="utf-8").split())
        quick = set(path.with_name("quick.txt").read_text(encoding="utf-8").split())
        on_kafka = {case for case, outcome in cases.items() if outcome == "PASS"}
        in_ci = {case for case in passes if case.partition("/")[0] in quick or case[:4] in quick}
        counted[path.parent.name] = [
            *(len(cases), len(on_kafka), len(passes), len(on_kafka - passes), len(in_ci))
        ]
    assert stated == counted
