"""What a process is, by `process.roles` and `controller.quorum.*`: a broker with its controller.

Pure. Which controllers a broker has is decided here and nowhere else: the embedded one, which is the only
voter of its quorum, has neither a port nor an address. Source: Kafka KafkaConfig.validateValues,
QuorumConfig.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from isotherm.errors import ConfigError

COMBINED = ("broker", "controller")

_HOST_AND_PORT = re.compile(r"\[?([0-9a-zA-Z\-%._:]+)\]?:([0-9]+)")


def check_embedded_controller(
    roles: Sequence[str], voters: Sequence[str], bootstrap_servers: Sequence[str], node_id: int
) -> None:
    """ConfigError unless this process has the quorum's only controller in it."""
    if set(roles) != set(COMBINED):
        raise ConfigError(
            "a process is broker and controller at once, without controllers elsewhere"
            f" key=process.roles value={','.join(roles)} expected={','.join(COMBINED)}"
        )
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
            "a cluster of several controllers is not served: this broker would be one of its own"
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
