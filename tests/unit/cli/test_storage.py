"""`isotherm storage`: formatting of directories, and the credentials of the first start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isotherm.broker.metadata.directory_ids import is_directory
from isotherm.broker.startup.bootstrap_checkpoint import BOOTSTRAP_FILE
from isotherm.cli.main import app
from isotherm.errors import ConfigError, CorruptMetadataError
from isotherm.log.checkpoints import load_meta_properties
from isotherm.log.fs import OsFileSystem
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import uuid_from_text

CLUSTER = "SXNvdGhlcm1PcmFjbGUwMA"


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(
        "process.roles=broker\nnode.id=5\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        "controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://:9092\n"
        f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}\n"
    )
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["storage", *map(str, arguments)])


def test_format_gives_every_directory_an_id_of_its_own(tmp_path, properties):
    result = run("format", "-t", CLUSTER, "-c", properties)
    assert result.exit_code == 0
    assert f"Formatting metadata directory {tmp_path / 'a'}" in result.stdout
    assert f"Formatting data directory {tmp_path / 'b'}" in result.stdout
    owners = [load_meta_properties(OsFileSystem(), tmp_path / name) for name in "ab"]
    assert {(owner.cluster_id, owner.node_id) for owner in owners} == {(CLUSTER, 5)}
    ids = {uuid_from_text(owner.directory_id) for owner in owners}
    assert len(ids) == 2
    assert all(map(is_directory, ids))


def test_formatted_directories_are_closed_to_other_users(tmp_path, properties):
    before = os.umask(0o022)
    try:
        run("format", "-t", CLUSTER, "-c", properties)
        assert os.umask(0o022) == 0o022, "that of the process is as before"
    finally:
        os.umask(before)
    for path in (tmp_path / "a", tmp_path / "a" / "meta.properties"):
        assert path.stat().st_mode & 0o007 == 0


def test_format_of_what_is_formatted_is_refused_unless_it_is_to_be_ignored(tmp_path, properties):
    run("format", "-t", CLUSTER, "-c", properties)
    (tmp_path / "b" / "meta.properties").unlink()
    before = (tmp_path / "a" / "meta.properties").read_bytes()
    refused = run("format", "-t", CLUSTER, "-c", properties)
    assert isinstance(refused.exception, ConfigError)
    assert f"Log directory {tmp_path / 'a'} is already formatted." in str(refused.exception)
    assert not (tmp_path / "b" / "meta.properties").exists()
    assert run("format", "-t", CLUSTER, "-c", properties, "-g").exit_code == 0
    assert (tmp_path / "a" / "meta.properties").read_bytes() == before
    assert (tmp_path / "b" / "meta.properties").exists()
    again = run("format", "-t", CLUSTER, "-c", properties, "-g")
    assert again.stdout == "All of the log directories are already formatted.\n"


def test_format_for_another_cluster_or_node_is_refused(properties):
    run("format", "-t", CLUSTER, "-c", properties)
    other = run("format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", properties, "-g")
    assert f"but read {CLUSTER}" in str(other.exception)
    properties.write_text(properties.read_text().replace("node.id=5", "node.id=6"))
    other = run("format", "-t", CLUSTER, "-c", properties, "-g")
    assert "belongs to another broker" in str(other.exception)


def test_info_tells_what_is_there_and_what_is_wrong(tmp_path, properties):
    missing = run("info", "-c", properties)
    assert missing.exit_code == 1
    assert f"  {tmp_path / 'a'} does not exist" in missing.stdout
    run("format", "-t", CLUSTER, "-c", properties)
    formatted = run("info", "-c", properties)
    assert formatted.exit_code == 0
    assert f"Found metadata: {{cluster.id={CLUSTER}, directory.id=" in formatted.stdout
    (tmp_path / "b" / "meta.properties").unlink()
    assert f"  {tmp_path / 'b'} is not formatted." in run("info", "-c", properties).stdout
    (tmp_path / "b" / "meta.properties").write_text(f"version=1\nnode.id=6\ncluster.id={CLUSTER}\n")
    assert "Mismatched node IDs between" in run("info", "-c", properties).stdout


def test_random_uuid_is_one_of_kafkas():
    assert uuid_from_text(run("random-uuid").stdout.strip()).version == 4


def test_credentials_are_there_at_the_first_start_of_an_embedded_controller(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text(f"log.dirs={tmp_path / 'broker' / 'log'}\nnode.id=1\n")
    first = ["--add-scram", "SCRAM-SHA-256=[name=alice,password=hers]"]
    second = ["-S", "SCRAM-SHA-512=[name=bob,password=his,iterations=8192]"]
    assert run("format", "-t", CLUSTER, "-c", path, *first, *second).exit_code == 0
    expected = {("alice", 1): 4096, ("bob", 2): 8192}
    for _ in range(2):
        with EmbeddedBroker(tmp_path / "broker") as broker:
            assert broker.node.services.cluster_id == CLUSTER
            credentials = broker.node.services.metadata.image.scram_credentials
            assert {
                (user.name, user.mechanism): record.iterations
                for user, record in credentials.items()
            } == expected
    later = run("format", "-t", CLUSTER, "-c", path, "-g", *first)
    assert later.exit_code == 0
    assert "--add-scram has no effect: the metadata directory" in later.stderr


def test_credentials_for_a_broker_without_a_controller_have_no_effect(tmp_path, properties):
    result = run(
        "format", "-t", CLUSTER, "-c", properties, "-S", "SCRAM-SHA-256=[name=alice,password=hers]"
    )
    assert result.exit_code == 0
    assert "--add-scram has no effect: process.roles is broker" in result.stderr
    assert not list(tmp_path.rglob("bootstrap*"))


def test_credential_that_cannot_be_read_formats_nothing(tmp_path, properties):
    refused = run("format", "-t", CLUSTER, "-c", properties, "-S", "SCRAM-SHA-256=[name=alice]")
    assert isinstance(refused.exception, ConfigError)
    assert not (tmp_path / "a").exists()


def test_damaged_credentials_stop_the_first_start(tmp_path):
    path = tmp_path / "server.properties"
    directory = tmp_path / "broker" / "log"
    path.write_text(f"log.dirs={directory}\nnode.id=1\n")
    run("format", "-t", CLUSTER, "-c", path, "-S", "SCRAM-SHA-256=[name=a,password=b]")
    whole = (directory / BOOTSTRAP_FILE).read_bytes()
    for damaged in (whole[:-1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        (directory / BOOTSTRAP_FILE).write_bytes(damaged)
        with pytest.raises(CorruptMetadataError, match=BOOTSTRAP_FILE):
            EmbeddedBroker(tmp_path / "broker").start()
