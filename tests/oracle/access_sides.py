"""Isotherm and Apache Kafka with the same ACLs, topics, groups and transactions, for the tests that
compare what they allow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access import acl_changes
from isotherm.broker.metadata.access.acls import Operation, PatternType, Permission
from isotherm.broker.metadata.access.acls import ResourceType as Resource
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.local_servers import free_ports
from oracle.kafka import KafkaOracle, running_kafka
from oracle.raw_requests import CLOSED, ask, outcomes, read_answer, request_frame
from oracle.topics import has_leaders, wait_until
from tests.support.raw_client import RawClient

TIMEOUT_S = 300
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ANONYMOUS = "User:ANONYMOUS"
ADMIN, PASSWORD = "admin", "secret"
TOPICS = ("known", "knot", "other")

ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


class Rule(NamedTuple):
    """An ACL. One for another address or another user does not concern the client."""

    resource: Resource
    name: str
    operation: Operation
    permission: Permission = ALLOW
    pattern: PatternType = LITERAL
    host: str = "*"
    principal: str = ANONYMOUS


CLUSTER = "kafka-cluster"
NAMES = (
    (Resource.TOPIC, "known"),
    (Resource.GROUP, "g"),
    (Resource.TRANSACTIONAL_ID, "t"),
    (Resource.CLUSTER, CLUSTER),
)
EVERYTHING = [Rule(kind, "*", Operation.ALL) for kind, _ in NAMES[:3]] + [
    Rule(Resource.CLUSTER, CLUSTER, Operation.ALL)
]
OPERATIONS: Mapping[Resource, Sequence[Operation]] = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


class Isotherm:
    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self.server, self.admin_server = (
            f"{host}:{port}" for _, host, port in broker.node.endpoints
        )

    def set_acls(self, rules: Sequence[Rule]) -> None:
        """Set the ACLs inside the broker: no client may change them."""
        services = self._broker.node.services

        def change() -> None:
            every = acl_changes.AclFilter(1, None, 1, None, None, 1, 1)
            services.controller.delete_acls([every])
            errors = services.controller.create_acls(
                [
                    acl_changes.AclBinding(
                        rule.resource,
                        rule.name,
                        rule.pattern,
                        rule.principal,
                        rule.host,
                        rule.operation,
                        rule.permission,
                    )
                    for rule in rules
                ]
            )
            assert not any(errors)

        changing = services.run_control(change)
        asyncio.run_coroutine_threadsafe(changing, self._broker.loop).result(TIMEOUT_S)


class Kafka:
    def __init__(self, oracle: KafkaOracle, admin_server: str) -> None:
        self.server, self.admin_server = oracle.bootstrap_server, admin_server
        self._admin = AdminClient(
            {
                "bootstrap.servers": admin_server,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": ADMIN,
                "sasl.password": PASSWORD,
                # It may outlive its broker.
                "log_level": 0,
            }
        )

    def set_acls(self, rules: Sequence[Rule]) -> None:
        every = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        bindings = {_binding(rule) for rule in rules}
        self._admin.delete_acls([every])[every].result(TIMEOUT_S)
        if bindings:
            for created in self._admin.create_acls(sorted(bindings)).values():
                created.result(TIMEOUT_S)

        def are_there() -> bool:
            # The ACLs, not their number: a broker that has not followed yet has as many old ones.
            return set(self._admin.describe_acls(every).result(TIMEOUT_S)) == bindings

        wait_until(are_there, "the ACLs")


def _binding(rule: Rule) -> AclBinding:
    kind = {Resource.CLUSTER: "BROKER"}.get(rule.resource, rule.resource.name)
    return AclBinding(
        ResourceType[kind],
        rule.name,
        ResourcePatternType[rule.pattern.name],
        rule.principal,
        rule.host,
        AclOperation[rule.operation.name],
        AclPermissionType[rule.permission.name],
    )


_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def login_of(users: Iterable[str]) -> str:
    """The JAAS configuration of a listener that these users log in to, with PASSWORD."""
    each = " ".join(f'user_{user}="{PASSWORD}"' for user in (ADMIN, *users))
    return f'{_PLAIN} username="{ADMIN}" password="{PASSWORD}" {each};'


SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": f"User:{ADMIN}",
    "sasl.enabled.mechanisms": "PLAIN",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.retention.ms": "-1",
    "remote.log.storage.system.enable": "false",
}


def kafka_settings(ports: Sequence[int], login: str) -> dict[str, str]:
    """Of a broker with listeners for ANONYMOUS, for logins, and for the controller."""
    client, admin, controller = (f"127.0.0.1:{port}" for port in ports)
    return {
        **SETTINGS,
        "listeners": f"PLAINTEXT://{client},ADMIN://{admin},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{client},ADMIN://{admin},CONTROLLER://{controller}",
        "controller.quorum.bootstrap.servers": controller,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,ADMIN:SASL_PLAINTEXT,"
        "CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "ADMIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.admin.plain.sasl.jaas.config": login,
        "listener.name.controller.plain.sasl.jaas.config": login,
    }


ISOTHERM_SETTINGS = {
    **SETTINGS,
    "listeners": "PLAINTEXT://127.0.0.1:0,ADMIN://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,ADMIN:SASL_PLAINTEXT",
}


@contextlib.contextmanager
def running_sides(
    directory: Path, users: Iterable[str] = (), settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[Isotherm, Kafka]]:
    """Both brokers, with these users beside User:admin, who is a super user."""
    ports, login = free_ports(3), login_of(users)
    of_isotherm = {
        **ISOTHERM_SETTINGS,
        **settings,
        "listener.name.admin.plain.sasl.jaas.config": login,
    }
    of_kafka = {**kafka_settings(ports, login), **settings}
    for name in ("kafka", "isotherm"):
        (directory / name).mkdir()
    with (
        running_kafka(directory / "kafka", of_kafka) as oracle,
        EmbeddedBroker(directory / "isotherm", of_isotherm) as broker,
    ):
        yield Isotherm(broker), Kafka(oracle, f"127.0.0.1:{ports[1]}")


_NOT_YET = {
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.unknown_topic_or_partition,
}
_COORDINATORS: Sequence[tuple[ApiKey, int, dict[str, Any]]] = [
    (ApiKey.FIND_COORDINATOR, 6, {"key_type": 0, "coordinator_keys": ["g"]}),
    (ApiKey.FIND_COORDINATOR, 6, {"key_type": 1, "coordinator_keys": ["t"]}),
    (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"]}),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["nobody"]}),
    (ApiKey.INIT_PRODUCER_ID, 4, {"producer_id": -1, "producer_epoch": -1}),
]


def set_up(server: str) -> None:
    """Create the topics, and commit offsets of the group in two of them."""
    admin = AdminClient({"bootstrap.servers": server})
    for created in admin.create_topics([NewTopic(name, 2, 1) for name in TOPICS]).values():
        error = created.exception(TIMEOUT_S)
        assert error is None or error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    for name in TOPICS:
        wait_until(lambda name=name: has_leaders(admin, name, 2), f"leaders of topic={name}")
    partitions = [{"partition_index": 0, "committed_offset": 0}]
    committed = [{"name": name, "partitions": partitions} for name in ("known", "other")]
    commit = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": committed}
    for api, version, fields in [*_COORDINATORS, (ApiKey.OFFSET_COMMIT, 9, commit)]:
        frame = request_frame(api, version, fields)

        def is_done(frame: bytes = frame, api: ApiKey = api, version: int = version) -> bool:
            answer = ask(server, frame)
            assert isinstance(answer, bytes)
            codes = outcomes(read_answer(api, version, answer)).values()
            return _NOT_YET.isdisjoint(code.error_code for code in codes)

        wait_until(is_done, f"{api.name} on {server}")


def topic_ids_of(server: str) -> dict[str, str]:
    answer = ask(server, request_frame(ApiKey.METADATA, 12, {"topics": None}))
    assert isinstance(answer, bytes)
    topics = read_answer(ApiKey.METADATA, 12, answer).topics
    return {topic.name: str(topic.topic_id) for topic in topics}


def ask_as_admin(server: str, frame: bytes) -> bytes | str:
    with RawClient(server) as client:
        assert client.log_in_plain(ADMIN, PASSWORD).error_code is ErrorCode.none
        client.send_frame(frame)
        return client.receive_frame() or CLOSED
