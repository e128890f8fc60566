"""franz-go's own test suite (pkg/kgo), from its Go module, against `isotherm serve`.

`franz_go/passes.txt` names the tests that pass, and only grows; `franz_go/FINDINGS.md` tells of the
others. The suite is built once, into `.tools`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from isotherm.testing.broker_process import BrokerProcess

MODULE = "github.com/twmb/franz-go"
VERSION = "v1.22.2"
HERE = Path(__file__).parent / "franz_go"
TOOLS = Path(__file__).parents[2] / ".tools"
BUILD_TIMEOUT_S = 240
RUN_TIMEOUT_S = 150
# The group and transaction chains move this many through each protocol; their default is 500,000.
RECORDS = 2000

_RESULT = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+) \(", re.MULTILINE)


def listed() -> list[str]:
    return (HERE / "passes.txt").read_text(encoding="utf-8").split()


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled test binary."""
    binary = TOOLS / f"franz-go-{VERSION}.test"
    if binary.exists():
        return binary
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    folder = tmp_path_factory.mktemp("franz-go")
    download = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )
    if download.returncode != 0:
        pytest.skip(f"the Go module cannot be had: {download.stdout}{download.stderr}")
    # The module cache is read-only, and a build may want to write beside the sources.
    source = folder / "source"
    shutil.copytree(json.loads(download.stdout)["Dir"], source, copy_function=shutil.copyfile)
    for path in [source, *source.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    built = folder / "kgo.test"
    subprocess.run(
        ["go", "test", "-c", "-o", str(built), "./pkg/kgo"],
        cwd=source,
        check=True,
        timeout=BUILD_TIMEOUT_S,
    )
    TOOLS.mkdir(exist_ok=True)
    partial = binary.with_suffix(".partial")
    shutil.copy(built, partial)
    partial.replace(binary)
    return binary


@pytest.mark.slow
def test_listed_tests_of_franz_go_pass(
    suite: Path, broker_process: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_process(
        {
            "group.initial.rebalance.delay.ms": "100",
            # Members hear of a new assignment with their next heartbeat.
            "group.consumer.heartbeat.interval.ms": "500",
        }
    )
    ran = subprocess.run(
        [
            *(str(suite), "-test.v", "-test.parallel=16", f"-test.timeout={RUN_TIMEOUT_S}s"),
            f"-test.run=^({'|'.join(listed())})$",
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "KGO_SEEDS": broker.bootstrap_servers,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(RECORDS),
            "KGO_LOG_LEVEL": "none",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S + 30,
    )
    (tmp_path / "franz-go.log").write_text(ran.stdout + ran.stderr, encoding="utf-8")
    results = {name: outcome for outcome, name in _RESULT.findall(ran.stdout)}
    failed = {name: results.get(name) for name in listed() if results.get(name) != "PASS"}
    assert failed == {}, f"{ran.stdout[-4000:]}\nsee {tmp_path}/franz-go.log"
    assert broker.stop() == 0


def test_pass_list_is_sorted_and_has_no_test_twice() -> None:
    assert listed() == sorted(set(listed()))
