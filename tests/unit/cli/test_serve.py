"""`isotherm serve` from its command line: configuration, warnings, refusals, and a lean start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotherm.cli.main import app


def isotherm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a process of its own."""
    command = [sys.executable, "-m", "isotherm.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_print_config_shows_where_each_value_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("num.partitions=2\nnode.id=3\n")
    monkeypatch.setenv("KAFKA_NODE_ID", "4")
    arguments = ["serve", "-c", str(properties), "-d", str(tmp_path / "data"), "--print-config"]
    result = CliRunner().invoke(app, [*arguments, "--json", "-o", "num.partitions=5"])
    found = {row["key"]: row for row in map(json.loads, result.stdout.splitlines())}
    assert (found["num.partitions"]["value"], found["num.partitions"]["source"]) == (
        "5",
        "--override",
    )
    assert (found["node.id"]["value"], found["node.id"]["source"]) == ("4", "environment")
    assert found["log.dir"]["source"] == "embedded default"
    delay = found["group.initial.rebalance.delay.ms"]
    assert (delay["value"], delay["source"]) == ("0", "embedded default")


def test_member_of_a_cluster_has_kafkas_rebalance_delay() -> None:
    member = (
        "process.roles=broker",
        "controller.quorum.voters=2@localhost:9093",
        "controller.listener.names=CONTROLLER",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    )
    overrides = [part for text in member for part in ("-o", text)]
    result = CliRunner().invoke(app, ["serve", *overrides, "--print-config", "--json"])
    assert result.exit_code == 0, result.output
    keys = {json.loads(line)["key"] for line in result.stdout.splitlines()}
    assert "process.roles" in keys
    assert "group.initial.rebalance.delay.ms" not in keys


SECRETS = (
    "listener.name.clients.plain.sasl.jaas.config",
    "ssl.keystore.password",
    "rsm.config.aws.secret.access.key",
    "rsm.config.aws.session.token",
    "rsm.config.azure.account.key",
    "rsm.config.azure.sas.token",
)


def test_print_config_shows_no_secret(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.touch(0o600)
    in_address = "rsm.config.url=s3://key:s3cret@bucket/prefix\n"
    properties.write_text("".join(f"{name}=s3cret\n" for name in SECRETS) + in_address)
    done = isotherm("serve", "-c", str(properties), "-d", str(tmp_path / "data"), "--print-config")
    assert all(name in done.stdout for name in SECRETS), done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    assert "s3://[hidden]@bucket/prefix" in done.stdout
    assert str(properties) not in done.stderr


@pytest.mark.slow
def test_configuration_with_a_secret_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("ssl.keystore.password=s3cret\n")
    for mode, is_warned in ((0o640, True), (0o600, False)):
        properties.chmod(mode)
        done = isotherm("serve", "-c", str(properties), "--print-config")
        assert ("can be read by others" in done.stderr) == is_warned
    properties.write_text("num.partitions=2\n")
    properties.chmod(0o644)
    done = isotherm("serve", "-c", str(properties), "--print-config")
    assert "can be read by others" not in done.stderr


def test_unknown_key_is_logged_with_the_nearest_name_and_ignored() -> None:
    done = isotherm("serve", "-o", "log.retention.hour=1", "--print-config")
    assert done.returncode == 0
    assert "key=log.retention.hour nearest=log.retention.hours" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("listeners=SSL://localhost:9093", "advertised.listeners"),
        ("process.roles=controller", "key=process.roles value=controller"),
        (
            "authorizer.class.name=org.Example",
            "value org.Example for configuration authorizer.class.name: ",
        ),
    ],
)
def test_start_that_is_refused_is_one_line(override: str, named: str) -> None:
    done = isotherm("serve", "-o", override)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert named in done.stderr


def test_broker_that_does_not_answer_is_named() -> None:
    done = isotherm("topics", "list", "-b", "127.0.0.1:1")
    assert done.returncode == 1
    assert "127.0.0.1:1: connection refused" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("noun", ["serve", "topics", "produce", "consume", "dump-log", "remote"])
def test_help_of_every_noun_teaches(noun: str) -> None:
    result = CliRunner().invoke(app, [noun, "--help"])
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) > 5


NEEDED_BY_SOME = (
    "cryptography",
    "hypothesis",
    "isotherm.broker.cluster.member_cluster",
    "numba",
    "pyarrow",
    "pydantic",
    "rich",
)


@pytest.mark.slow
def test_a_start_imports_nothing_that_only_some_brokers_need(tmp_path: Path) -> None:
    script = f"""
import sys
from isotherm.broker import process

def run(read_config):
    read_config()
    print(*(name for name in {NEEDED_BY_SOME} if name in sys.modules), flush=True)
    return 0

process.run = run
sys.argv[1:] = ["serve", "--data-dir", sys.argv[1]]
from isotherm.cli.main import main
main()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == "\n"


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("0o022", 0o027), ("0o077", 0o077)])
def test_files_of_a_broker_are_closed_to_other_users(
    tmp_path: Path, before: str, after: int
) -> None:
    script = f"""
import os, sys
from isotherm.broker import process

def run(read_config):
    print(os.umask(0), flush=True)
    return 0

process.run = run
os.umask({before})
sys.argv[1:] = ["serve", "--data-dir", sys.argv[1]]
from isotherm.cli.main import main
main()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) == after
