"""AlterConfigs at a member of a cluster: it sets its own loggers, checks brokers' settings, and
forwards all but the loggers to the controller."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import incremental_alter_configs
from isotherm.broker.apis.config_forwarding import check_broker_changes, checked_forwarding
from isotherm.broker.metadata.configs.config_resources import ResourceType
from isotherm.broker.metadata.controller.config_changes import (
    ConfigChange,
    ConfigOperation,
    replacing_changes,
)
from isotherm.broker.metadata.image import ConfigResource, MetadataImage
from isotherm.broker.metadata.metadata_records import BROKER_RESOURCE
from isotherm.broker.metadata.quorum.quorum_metadata import QuorumMetadata
from isotherm.config.broker import BrokerConfig
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of

VERSION = 1
NODE = "1"


def resource(kind: int, name: str, key: str = "", value: str = "") -> dict[str, Any]:
    configs = [{"name": key, "config_operation": 0, "value": value}] if key else []
    return {"resource_type": kind, "resource_name": name, "configs": configs}


class Sides:
    """The two handlers of a request, here and at the controller. `asked` has the resource types
    that each got."""

    def __init__(self, broker: Any) -> None:
        self.context = broker.context(ApiKey.INCREMENTAL_ALTER_CONFIGS, VERSION)
        self.asked: dict[str, list[int]] = {}
        self._handle = checked_forwarding(
            self._side("here"), incremental_alter_configs.changes_of, self._side("there")
        )

    def _side(self, name: str) -> Any:
        async def handle(context: Any, request: Any) -> Any:
            self.asked[name] = [each.resource_type for each in request.resources]
            rows = [
                {
                    "error_code": ErrorCode.none,
                    "error_message": name,
                    "resource_type": each.resource_type,
                    "resource_name": each.resource_name,
                }
                for each in request.resources
            ]
            return context.response({"responses": rows})

        return handle

    def alter(
        self, *resources: dict[str, Any], validate_only: bool = False
    ) -> list[tuple[int, ErrorCode]]:
        request = entity_of(
            request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS, VERSION),
            {"resources": resources, "validate_only": validate_only},
        )
        response = asyncio.run(self._handle(self.context, request))  # type: ignore[arg-type]
        return sorted((each.resource_type, each.error_code) for each in response.responses)


@pytest.fixture
def sides(broker: Any) -> Sides:
    return Sides(broker)


TOPIC = resource(ResourceType.TOPIC, "t", "retention.ms", "soon")
OWN = resource(ResourceType.BROKER, NODE, "log.cleaner.threads", "2")
LOGGER = resource(ResourceType.BROKER_LOGGER, NODE, "root", "INFO")


@pytest.mark.parametrize(
    ("resources", "here", "there"),
    [
        ([TOPIC, OWN], None, [ResourceType.TOPIC, ResourceType.BROKER]),
        ([LOGGER], [ResourceType.BROKER_LOGGER], None),
        (
            [TOPIC, LOGGER, OWN],
            [ResourceType.BROKER_LOGGER],
            [ResourceType.TOPIC, ResourceType.BROKER],
        ),
    ],
)
def test_levels_of_loggers_are_set_here(sides, resources, here, there):
    answers = sides.alter(*resources)
    assert (sides.asked.get("here"), sides.asked.get("there")) == (here, there)
    assert answers == sorted((each["resource_type"], ErrorCode.none) for each in resources)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        (NODE, "log.dirs", "/elsewhere"),
        ("", "node.id", "7"),
        (NODE, "log.retention.ms", "soon"),
        ("", "log.cleaner.threads", "50"),
        ("7", "log.retention.ms", "9000000"),
        ("seven", "log.retention.ms", "9000000"),
    ],
)
def test_settings_of_brokers_are_checked_before_they_are_forwarded(sides, name, key, value):
    answers = sides.alter(resource(ResourceType.BROKER, name, key, value), TOPIC)
    assert answers == [
        (ResourceType.TOPIC, ErrorCode.none),
        (ResourceType.BROKER, ErrorCode.invalid_request),
    ]
    assert sides.asked == {"there": [ResourceType.TOPIC]}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("", "log.retention.ms", "9000000"),
        (NODE, "log.cleaner.threads", "2"),
        # A key of Apache Kafka's, for another broker of the same cluster.
        ("", "num.io.threads", "9"),
    ],
)
def test_legal_settings_of_brokers_are_forwarded(sides, name, key, value):
    asked = resource(ResourceType.BROKER, name, key, value)
    assert sides.alter(asked) == [(ResourceType.BROKER, ErrorCode.none)]
    assert sides.asked == {"there": [ResourceType.BROKER]}


@pytest.mark.parametrize(
    ("key", "validate_only", "announced"),
    [
        ("listener.name.tls.ssl.keystore.location", False, 1),
        ("listener.name.tls.ssl.truststore.location", False, 1),
        ("listener.name.tls.ssl.keystore.location", True, 0),
        ("log.cleaner.threads", False, 0),
    ],
)
def test_stores_that_are_set_again_are_read_again(sides, key, validate_only, announced):
    """As in Kafka's DynamicConfigPublisher, setting a store again reloads it, though the metadata
    does not change."""
    changes: list[Any] = []
    metadata = sides.context.services.metadata
    metadata.add_listener(changes.append)
    own = resource(ResourceType.BROKER, NODE, key, "2")
    assert sides.alter(TOPIC, own, validate_only=validate_only) == [
        (ResourceType.TOPIC, ErrorCode.none),
        (ResourceType.BROKER, ErrorCode.none),
    ]
    assert [change.broker_config for change in changes] == [metadata.broker_config] * announced


TWICE = resource(ResourceType.TOPIC, "u", "retention.ms", "1")


@pytest.mark.parametrize(
    ("malformed", "codes"),
    [
        # The controller would delete the setting.
        (
            [
                {
                    **resource(ResourceType.TOPIC, "u"),
                    "configs": [{"name": "retention.ms", "config_operation": 0, "value": None}],
                }
            ],
            [ErrorCode.invalid_request],
        ),
        # The controller would take the second.
        ([{**TWICE, "configs": TWICE["configs"] * 2}], [ErrorCode.invalid_request]),
        ([TWICE, TWICE], [ErrorCode.invalid_request, ErrorCode.invalid_request]),
    ],
)
def test_malformed_resources_do_not_reach_the_controller(sides, malformed, codes):
    answers = sides.alter(*malformed, TOPIC)
    assert sorted(code for _, code in answers) == [ErrorCode.none, *codes]
    assert sides.asked == {"there": [ResourceType.TOPIC]}


def test_setting_is_deleted_without_a_value(sides):
    deletion = {"name": "retention.ms", "config_operation": 1, "value": None}
    asked = {**resource(ResourceType.TOPIC, "t"), "configs": [deletion]}
    assert sides.alter(asked) == [(ResourceType.TOPIC, ErrorCode.none)]


def member_metadata(**texts: dict[str, str]) -> QuorumMetadata:
    """The metadata of node 5 with a remote tier. `texts` are the settings `for_all` and
    `for_this`."""
    config = BrokerConfig(node_id=5)
    remote = replace(config.remote, remote_log_storage_system_enable=True)
    names = {"for_all": "", "for_this": "5"}
    stored = {ConfigResource(BROKER_RESOURCE, names[place]): texts[place] for place in texts}
    return QuorumMetadata(replace(config, remote=remote), MetadataImage(configs=stored))


def change(name: str, value: str | None) -> ConfigChange:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    return ConfigChange(name, operation, value)


RETENTIONS = {"log.retention.ms": "900000000", "log.local.retention.ms": "800000000"}


def test_deletion_that_leaves_settings_that_do_not_fit_is_refused():
    metadata = member_metadata(for_all=RETENTIONS)
    with pytest.raises(InvalidRequestError, match="local"):
        check_broker_changes(metadata, "", [change("log.retention.ms", None)])
    check_broker_changes(metadata, "", [change("log.local.retention.ms", None)])


def test_settings_are_checked_without_those_that_go_with_the_change():
    metadata = member_metadata(for_this={"log.retention.ms": "1000000"})
    local = change("log.local.retention.ms", "2000000")
    with pytest.raises(InvalidRequestError):
        check_broker_changes(metadata, "5", [local])
    check_broker_changes(metadata, "5", [change("log.retention.ms", None), local])


def test_setting_that_takes_effect_only_at_a_start_can_be_deleted():
    """A client that reaches the controllers without a broker may have set it."""
    metadata = member_metadata(for_this={"log.dirs": "/elsewhere", "max.connections": "7"})
    check_broker_changes(metadata, "5", [change("log.dirs", None)])
    replaced = replacing_changes(metadata.broker_texts("5"), {"max.connections": "8"})
    check_broker_changes(metadata, "5", replaced)
    with pytest.raises(InvalidRequestError, match="dynamically"):
        check_broker_changes(metadata, "5", [change("log.dirs", "/there")])


def test_setting_of_all_brokers_is_checked_with_those_of_this_one():
    """As in Kafka, the setting of this broker stays in effect, so its pool does not shrink."""
    metadata = member_metadata(for_this={"log.cleaner.threads": "4"})
    check_broker_changes(metadata, "", [change("log.cleaner.threads", "1")])
    with pytest.raises(InvalidRequestError, match="at least half"):
        check_broker_changes(metadata, "5", [change("log.cleaner.threads", "1")])
    with pytest.raises(InvalidRequestError, match="at least half"):
        check_broker_changes(metadata, "5", [change("log.cleaner.threads", None)])
