"""Listeners and roles against Apache Kafka.

`listener_configs.jsonl` holds configuration files and Kafka's result for each.
`tests/oracle/test_configs.py` records it from Kafka itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isotherm.config.broker import BrokerConfig
from isotherm.config.listener import Address, Listener, SecurityProtocol
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import ConfigError

RECORDED = Path(__file__).parents[2] / "oracle" / "listener_configs.jsonl"
CASES = [json.loads(line) for line in RECORDED.read_text().splitlines()]

# A case in which both refuse, with different messages.
WORDS = "words"


def outcome(properties: dict[str, str]) -> dict[str, str]:
    """The result in the form of the recording. Isotherm needs no inter-broker listener, so that one
    is left out."""
    try:
        layout = parse_broker_config(properties).listener_layout
    except ConfigError as error:
        return {"refused": str(error)}
    return {
        "brokers": " ".join(
            text_of(broker, Address(broker.host, broker.port)) for broker in layout.brokers
        ),
        "advertised": " ".join(
            text_of(broker, broker.advertised) for broker in layout.brokers if broker.advertised
        ),
        "controllers": " ".join(
            text_of(controller, Address(controller.host, controller.port))
            for controller in layout.controllers
        ),
    }


def text_of(listener: Listener, address: Address) -> str:
    return f"{listener.name}:{listener.protocol.name}:{address.host}:{address.port}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_file_is_taken_or_refused_as_by_kafka(case: dict[str, Any]) -> None:
    kafka = {key: value for key, value in case["kafka"].items() if key != "inter_broker"}
    ours = outcome(case["properties"])
    difference = case.get("difference")
    if difference is None:
        assert ours == kafka
    elif difference == WORDS:
        assert ours.keys() == kafka.keys() == {"refused"}
        assert ours != kafka
    else:
        assert ("refused" in ours) != ("refused" in kafka)


def test_names_are_mapped_when_no_text_of_a_file_says_so() -> None:
    config = BrokerConfig(
        listeners=("INTERNAL://h:1",),
        listener_security_protocol_map="INTERNAL:PLAINTEXT",
        inter_broker_listener_name="INTERNAL",
    )
    (listener,) = config.listener_layout.brokers
    assert listener == Listener("INTERNAL", SecurityProtocol.PLAINTEXT, "h", 1, Address("h", 1))


def test_controller_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"key=process\.roles value=controller"):
        parse_broker_config({"process.roles": "controller"})


def test_several_controllers_are_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="this broker would be one of its own"):
        parse_broker_config({"controller.quorum.voters": "1@a:1,2@b:1"})
