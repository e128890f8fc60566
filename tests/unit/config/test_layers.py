"""Layers of configuration: property files, the environment, overrides, and embedded defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.config.layers import (
    Setting,
    embedded_defaults,
    environment_properties,
    layer_settings,
    parse_override,
    parse_properties,
    read_properties,
)
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import ConfigError

PROPERTIES = r"""
# a comment
! another
log.dirs=/a,\
         /b
node.id : 7
num.partitions 3
empty=
path=C\:\\data\u0021
"""


def test_properties_follow_javas_rules() -> None:
    assert parse_properties(PROPERTIES) == {
        "log.dirs": "/a,/b",
        "node.id": "7",
        "num.partitions": "3",
        "empty": "",
        "path": "C:\\data!",
    }


def test_escape_without_its_digits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"u12"):
        parse_properties("log.dirs=/\\u12\n")


def test_properties_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="server"):
        read_properties(tmp_path / "server.properties")


def test_environment_names_follow_kafkas_images() -> None:
    environment = {
        "KAFKA_LOG_DIRS": "/a",
        "KAFKA_ODD__NAME___X": "1",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "PATH": "/bin",
    }
    assert environment_properties(environment) == {"log.dirs": "/a", "odd_name-x": "1"}


def test_environment_names_of_bitnamis_images_win() -> None:
    environment = {
        "KAFKA_CFG_NODE_ID": "3",
        "KAFKA_NODE_ID": "4",
        "KAFKA_CFG_LOG_DIRS": "/b",
        "KAFKA_KRAFT_CLUSTER_ID": "abcdefghijklmnopqrstuv",
    }
    assert environment_properties(environment) == {"node.id": "3", "log.dirs": "/b"}
    assert environment_properties(dict(reversed(environment.items())))["node.id"] == "3"


def test_folder_of_a_file_wins_over_the_embedded_one_under_both_names(tmp_path: Path) -> None:
    for name in ("log.dir", "log.dirs"):
        texts = embedded_defaults(tmp_path, {}) | {name: "/data"}
        assert parse_broker_config(texts).log_dirs == (Path("/data"),)


def test_later_layer_wins_and_keeps_its_name() -> None:
    joined = layer_settings([("file", {"a": "1", "b": "2"}), ("--override", {"b": "3"})])
    assert joined == {"a": Setting("1", "file"), "b": Setting("3", "--override")}


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_override_without_a_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_override(text)


def test_embedded_defaults_keep_both_tiers_in_one_folder(tmp_path: Path) -> None:
    config = parse_broker_config(embedded_defaults(tmp_path, {}))
    assert config.log_dirs == (tmp_path / "log",)
    assert config.remote.remote_log_storage_system_enable
    assert config.remote.rsm_config["url"] == (tmp_path / "bucket").as_uri()


MEMBER = {
    "process.roles": "broker",
    "controller.quorum.voters": "2@localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}


@pytest.mark.parametrize(
    ("given", "delay_ms"),
    [
        ({}, 0),
        ({"process.roles": "broker,controller"}, 0),
        (MEMBER, 3000),
        ({"group.initial.rebalance.delay.ms": "500"}, 500),
    ],
)
def test_only_a_broker_alone_lets_a_group_start_at_once(
    tmp_path: Path, given: dict[str, str], delay_ms: int
) -> None:
    config = parse_broker_config({**embedded_defaults(tmp_path, given), **given})
    assert config.groups.group_initial_rebalance_delay_ms == delay_ms
