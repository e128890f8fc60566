from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isotherm.broker.metadata.directory_ids import is_directory
from isotherm.cli.main import app
from isotherm.errors import ConfigError
from isotherm.log.checkpoints import load_meta_properties
from isotherm.log.fs import OsFileSystem
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
    assert {(each.cluster_id, each.node_id) for each in owners} == {(CLUSTER, 5)}
    ids = {uuid_from_text(each.directory_id) for each in owners}
    assert len(ids) == 2
    assert all(map(is_directory, ids))


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
