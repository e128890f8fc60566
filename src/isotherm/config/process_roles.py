"""Finds the controllers of a broker, from `process.roles` and `controller.quorum.*` alone. Pure.

A broker has either the embedded controller, which is the only voter of its quorum and has no
address, or a quorum of Apache Kafka's controllers in other processes. Source: Kafka
KafkaConfig.validateValues, QuorumConfig.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from isotherm.errors import ConfigError

BROKER, CONTROLLER = "broker", "controller"
COMBINED = (BROKER, CONTROLLER)

_HOST_AND_PORT = re.compile(r"\[?([0-9a-zA-Z\-%._:]+)\]?:([0-9]+)")


class ControllerAddress(NamedTuple):
    """The address of a controller.

    `controller_id` is None for a bootstrap server, whose id is unknown.
    """

    controller_id: int | None
    host: str
    port: int


def has_embedded_controller(roles: Sequence[str]) -> bool:
    """Whether the roles include the controller. Raises ConfigError for a process that is only a
    controller."""
    if set(roles) == {CONTROLLER}:
        raise ConfigError(
            "a process is a broker, with the cluster's only controller in it or with Apache Kafka's"
            f" controllers elsewhere key=process.roles value={CONTROLLER}"
        )
    return CONTROLLER in roles


def quorum_addresses(
    voters: Sequence[str], bootstrap_servers: Sequence[str]
) -> tuple[ControllerAddress, ...]:
    """The addresses at which the broker asks for the quorum's leader. As in Kafka, bootstrap
    servers override voters. The texts must have passed `check_quorum`."""
    if bootstrap_servers:
        return tuple(_address(None, text) for text in bootstrap_servers)
    parts = (text.split("@") for text in voters)
    return tuple(_address(int(voter_id), address) for voter_id, address in parts)


def check_quorum(voters: Sequence[str], bootstrap_servers: Sequence[str], node_id: int) -> None:
    """Raise ConfigError, with Kafka's message, unless these keys name a quorum that a broker can
    join.
    """
    voter_ids = {_parse_voter(text) for text in voters}
    if not voters and not bootstrap_servers:
        raise ConfigError(
            "If using process.roles, either controller.quorum.bootstrap.servers must contain the"
            " set of bootstrap controllers or controller.quorum.voters must contain a parseable set"
            " of controllers."
        )
    if node_id in voter_ids:
        raise ConfigError(
            f"If process.roles contains just the 'broker' role, the node id {node_id} must not be"
            " included in the set of voters"
            f" controller.quorum.voters={','.join(map(str, sorted(voter_ids)))}"
        )
    for text in bootstrap_servers:
        _check_bootstrap_server(text)


def check_embedded_controller(
    voters: Sequence[str], bootstrap_servers: Sequence[str], node_id: int
) -> None:
    """Raise ConfigError unless the embedded controller is the only one of its quorum."""
    voter_ids = {_parse_voter(text) for text in voters}
    if voter_ids and node_id not in voter_ids:
        raise ConfigError(
            "If process.roles contains the 'controller' role, the node id"
            f" {node_id} must be included in the set of voters"
            f" controller.quorum.voters={','.join(map(str, sorted(voter_ids)))}"
        )
    for text in bootstrap_servers:
        _check_bootstrap_server(text)
    _check_only_one("controller.quorum.voters", voters)
    _check_only_one("controller.quorum.bootstrap.servers", bootstrap_servers)


def _check_only_one(key: str, controllers: Sequence[str]) -> None:
    if len(controllers) > 1:
        raise ConfigError(
            "a cluster of several controllers is not supported: this broker would be one of its own"
            f" key={key} value={','.join(controllers)} controllers={len(controllers)} expected=1"
        )


def _parse_voter(text: str) -> int:
    form = "Each entry should be in the form `{id}@{host}:{port}`."
    parts = text.split("@")
    if len(parts) != 2:
        raise ConfigError(
            f"Invalid configuration value for controller.quorum.voters. {form} entry={text}"
        )
    try:
        voter_id = int(parts[0])
    except ValueError as error:
        raise ConfigError(f"Failed to parse voter ID as an integer from {parts[0]}") from error
    if _HOST_AND_PORT.fullmatch(parts[1]) is None:
        raise ConfigError(
            f"Failed to parse host name from entry {text} for the configuration"
            f" controller.quorum.voters. {form}"
        )
    return voter_id


def _check_bootstrap_server(text: str) -> None:
    if _HOST_AND_PORT.fullmatch(text) is None:
        raise ConfigError(
            f"Failed to parse host name from {text} for the configuration"
            ' controller.quorum.bootstrap.servers. Each entry should be in the form "{host}:{port}"'
        )


def _address(controller_id: int | None, text: str) -> ControllerAddress:
    match = _HOST_AND_PORT.fullmatch(text)
    assert match is not None, "the address was checked"
    return ControllerAddress(controller_id, match[1], int(match[2]))
