"""What `isotherm replica` makes of its options and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.broker.cluster import replica_settings
from isotherm.broker.cluster.replica_acls import read_acl_file
from isotherm.cli import replica

ROOT = Path(__file__).parents[3]
OF_THE_IMAGE = "PLAINTEXT://127.0.0.1:9292"


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        (None, {}, replica.LISTENER),
        (None, {"listeners": OF_THE_IMAGE}, OF_THE_IMAGE),
        (["PLAINTEXT://127.0.0.1:9999"], {"listeners": OF_THE_IMAGE}, "PLAINTEXT://127.0.0.1:9999"),
    ],
)
def test_listeners_of_the_command_line_come_before_those_of_the_environment(
    tmp_path: Path, options: list[str] | None, given: dict[str, str], expected: str
) -> None:
    config = replica.replica_config(str(tmp_path), options, replica.NODE_ID, tmp_path, given)
    (listener,) = config.listener_layout.brokers
    assert str(listener) == expected


def test_read_ahead_has_a_default_of_its_own_which_settings_override(tmp_path: Path) -> None:
    def read_ahead(given: dict[str, str]) -> int:
        config = replica.replica_config(str(tmp_path), None, replica.NODE_ID, tmp_path, given)
        return config.remote.remote_log_reader_read_ahead_max_bytes

    assert read_ahead({}) == replica.READ_AHEAD_BYTES_MAX
    assert read_ahead({"remote.log.reader.read.ahead.max.bytes": "1000"}) == 1000


def test_defaults_are_those_of_the_settings() -> None:
    assert replica.LIST_INTERVAL_S == replica_settings.LIST_INTERVAL_S


def test_acls_of_the_compose_file_are_read() -> None:
    acls = read_acl_file(ROOT / "packaging" / "replica-acls.jsonl")
    assert {(acl.principal, acl.resource_name) for acl in acls.values()} == {("User:*", "*")}
