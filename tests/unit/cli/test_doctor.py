"""`isotherm doctor`: each fault of the machine or the configuration is a finding that says what to
do."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from isotherm.cli.doctor import (
    CLOCK_OFFSET_MAX_MS,
    OPEN_FILES_MIN,
    Finding,
    Outcome,
    bucket_advice,
    check_clock,
    check_folder,
    check_kernels,
    check_open_files,
    check_remote_tier,
)
from isotherm.cli.main import app
from isotherm.config.layers import embedded_defaults
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import IsothermError, RemoteStorageError
from isotherm.testing.sim_clock import SimClock
from tests.support.s3_server import S3Server, find_versitygw


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def findings(result: Result) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return {row.pop("check"): row for row in rows}


@pytest.fixture
def taken() -> int:
    """A port on which another socket listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_defaults_are_examined_and_nothing_is_created(tmp_path: Path) -> None:
    result = run("--data-dir", tmp_path / "data", "-o", "listeners=PLAINTEXT://:0", "--json")
    assert result.exit_code == 0, result.stdout
    found = findings(result)
    assert found[f"log directory {tmp_path / 'data' / 'log'}"]["outcome"] == "ok"
    assert found[f"bucket file://{tmp_path / 'data' / 'bucket'}"]["outcome"] == "ok"
    assert found["pyspark"]["found"].startswith("4.")
    assert list(tmp_path.iterdir()) == []


def test_each_fault_is_found_beside_the_others(tmp_path: Path, taken: int) -> None:
    (tmp_path / "file").touch()
    result = run(
        "-o", f"listeners=PLAINTEXT://127.0.0.1:{taken}",
        "-o", f"log.dirs={tmp_path / 'file' / 'log'}",
        "-o", "rsm.config.url=s3://bucket",
        "-o", f"rsm.config.s3.endpoint.url=http://127.0.0.1:{taken + 1 if taken < 65535 else 1}",
        "-o", "rsm.config.aws.access.key.id=id", "-o", "rsm.config.aws.secret.access.key=key",
        "-b", "127.0.0.1:1", "--json",
    )  # fmt: skip
    assert result.exit_code == 1
    found = findings(result)
    assert "in use" in found[f"listener PLAINTEXT://127.0.0.1:{taken}"]["found"]
    assert "cannot be written" in found[f"log directory {tmp_path / 'file' / 'log'}"]["found"]
    assert "operation=put" in found["bucket s3://bucket"]["found"]
    assert "s3.endpoint.url" in found["bucket s3://bucket"]["advice"]
    assert "connection refused" in found["broker"]["found"]


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_listener_of_another_machine_is_no_port_in_use(tmp_path: Path, host: str) -> None:
    """192.0.2.0/24 is for documentation: no machine has an address of it."""
    listener = f"PLAINTEXT://{host}:19092"
    result = run("-d", tmp_path, "-o", f"listeners={listener}", "--json")
    finding = findings(result)[f"listener {listener}"]
    assert (result.exit_code, finding["outcome"]) == (1, "failed")
    assert "advertised.listeners" in finding["advice"]
    assert "which process" not in finding["advice"]


def test_wildcard_of_ipv6_is_all_addresses_as_for_the_broker(tmp_path: Path, taken: int) -> None:
    listener = f"PLAINTEXT://[::]:{taken}"
    result = run("-d", tmp_path, "-o", f"listeners={listener}", "--json")
    assert "in use" in findings(result)[f"listener {listener}"]["found"]


def test_family_that_the_kernel_lacks_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the broker: `getaddrinfo` names addresses of IPv6 on a kernel without it, too."""
    addresses = [
        (4_000, socket.SOCK_STREAM, 6, "", ("::", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    result = run("-d", tmp_path, "-o", "listeners=PLAINTEXT://:19092", "--json")
    assert findings(result)["listener PLAINTEXT://:19092"]["found"] == "free"


def test_port_of_the_broker_that_runs_with_these_directories_is_no_fault(
    tmp_path: Path, taken: int
) -> None:
    """A lock belongs to a process, so another one has it."""
    log_dir = tmp_path / "data" / "log"
    log_dir.mkdir(parents=True)
    arguments = (
        "-d",
        tmp_path / "data",
        "-o",
        f"listeners=PLAINTEXT://127.0.0.1:{taken}",
        "--json",
    )
    assert "in use" in findings(run(*arguments))[f"listener PLAINTEXT://127.0.0.1:{taken}"]["found"]
    holder = (
        "import sys; from pathlib import Path; from isotherm.log.fs import OsFileLock;"
        f" lock = OsFileLock(Path({str(log_dir / '.lock')!r})); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        result = run(*arguments)
        process.communicate(b"")
    finding = findings(result)[f"listener PLAINTEXT://127.0.0.1:{taken}"]
    assert (finding["outcome"], finding["advice"]) == ("ok", "")
    assert "a broker with these log directories runs" in finding["found"]
    assert result.exit_code == 0, result.stdout


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("access denied (AccessDenied)", "s3:PutObject"),
        ("access denied (SignatureDoesNotMatch)", "secret.access.key"),
        ("bucket not found (NoSuchBucket)", "create the bucket"),
        ("wrong region: the bucket is in x (AuthorizationHeaderMalformed)", "rsm.config.s3.region"),
        ("not TLS: the store speaks http there, and not https", "http://"),
        ("connection refused", "s3.endpoint.url"),
        ("something else", "log"),
    ],
)
def test_advice_is_for_the_reason(reason: str, words: str) -> None:
    error = IsothermError("the store cannot be used")
    cause = RemoteStorageError("any")
    cause.reason = reason
    error.__cause__ = cause
    assert words in bucket_advice(error)
    assert ("s3:PutObject" in bucket_advice(error)) == ("AccessDenied" in reason)


def test_wrong_setting_is_named_and_the_machine_is_examined_all_the_same() -> None:
    result = run("-o", "num.partitions=many", "--json")
    assert result.exit_code == 2
    found = findings(result)
    assert "num.partitions" in found["configuration"]["found"]
    assert "java" in found


def test_table_has_what_to_do_below_each_finding(taken: int) -> None:
    result = run("-o", f"listeners=PLAINTEXT://127.0.0.1:{taken}")
    lines = result.stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("failed")]
    assert f"sport = :{taken}" in lines[at + 1]


def outcomes(found: object) -> list[Outcome]:
    return [each.outcome for each in found]


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [
        (OPEN_FILES_MIN - 1, Outcome.WARNING),
        (OPEN_FILES_MIN, Outcome.OK),
        (resource.RLIM_INFINITY, Outcome.OK),
    ],
)
def test_open_files(limit: int, outcome: Outcome) -> None:
    assert outcomes(check_open_files(limit)) == [outcome]


@pytest.mark.parametrize("sign", [1, -1])
def test_clock(sign: int) -> None:
    assert outcomes(check_clock(sign * CLOCK_OFFSET_MAX_MS)) == [Outcome.OK]
    assert outcomes(check_clock(sign * (CLOCK_OFFSET_MAX_MS + 1))) == [Outcome.WARNING]


def test_kernels_that_are_not_compiled_are_a_warning_with_the_command() -> None:
    (finding,) = check_kernels(is_compiled=False)
    assert finding.outcome is Outcome.WARNING
    assert finding.advice.endswith("-m isotherm.kernels")
    assert outcomes(check_kernels(is_compiled=True)) == [Outcome.OK]


def test_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.cli.doctor.FREE_BYTES_MIN", 2**62)
    assert check_folder("log", tmp_path).outcome is Outcome.WARNING


def test_bucket_and_its_clock_are_asked(tmp_path: Path) -> None:
    binary = find_versitygw()
    if binary is None:
        pytest.skip("versitygw is not installed: scripts/s3-server.sh install")

    def examine(clock: SimClock) -> list[Finding]:
        return list(check_remote_tier(parse_broker_config(texts), clock))

    with S3Server(binary, tmp_path / "root") as server:
        texts = embedded_defaults(tmp_path, {}) | {
            f"rsm.config.{name}": text for name, text in server.config.items()
        }
        bucket, clock = examine(SimClock(0))
    assert bucket.outcome is Outcome.OK
    assert clock.outcome is Outcome.WARNING
    assert clock.found.startswith("-")
