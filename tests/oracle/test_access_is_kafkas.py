"""ACLs allow and refuse the same requests as in Apache Kafka; raw requests go to both brokers.

Both use the rules of Kafka's StandardAuthorizer and the same ACLs for User:ANONYMOUS, which sends
every request in every version. The test compares the error codes of all parts of the answers, and
which parts exist: an item that one broker filters out of a list must be missing in both. Kafka's
own connections are those of User:admin, a super user. It also sends the same requests once,
although each ACL denies them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
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

from isotherm.broker.apis.api_register import APIS, SERVED
from isotherm.broker.metadata.access import acl_changes
from isotherm.broker.metadata.access.acls import Operation, PatternType, Permission
from isotherm.broker.metadata.access.acls import ResourceType as Resource
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.errors import ProtocolError
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.local_servers import free_ports
from oracle.kafka import KafkaOracle, running_kafka
from oracle.raw_requests import CLOSED, ask, outcomes, read_answer, request_frame
from oracle.topics import has_leaders, wait_until
from tests.oracle.access_requests import NOT_ASKED, REQUESTS, fitting
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

SCENARIOS: Mapping[str, Sequence[Rule]] = {
    "no ACL": [],
    "everything": EVERYTHING,
    **{
        f"{operation.name} on {kind.name}": [Rule(kind, name, operation)]
        for kind, name in NAMES
        for operation in OPERATIONS[kind]
    },
    "ALL on what is named": [Rule(kind, name, Operation.ALL) for kind, name in NAMES],
    "prefixed": [Rule(kind, name[0], Operation.ALL, pattern=PREFIXED) for kind, name in NAMES[:3]],
    "denied below a wildcard": [
        *EVERYTHING,
        Rule(Resource.TOPIC, "known", Operation.READ, DENY),
        Rule(Resource.TOPIC, "known", Operation.WRITE, DENY),
    ],
    "description denied": [
        *EVERYTHING,
        Rule(Resource.TOPIC, "kn", Operation.DESCRIBE, DENY, PREFIXED),
    ],
    "all denied": [*EVERYTHING, *(Rule(kind, name, Operation.ALL, DENY) for kind, name in NAMES)],
    "another's": [Rule(kind, name, Operation.ALL, principal="User:alice") for kind, name in NAMES],
    "from elsewhere": [Rule(kind, name, Operation.ALL, host="10.0.0.1") for kind, name in NAMES],
    "from here, for everyone": [
        Rule(kind, name, Operation.ALL, host="127.0.0.1", principal="User:*")
        for kind, name in NAMES
    ],
    "group and topic": [
        Rule(Resource.GROUP, "g", Operation.READ),
        Rule(Resource.TOPIC, "known", Operation.READ),
        Rule(Resource.TRANSACTIONAL_ID, "t", Operation.WRITE),
    ],
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
        self._admin.delete_acls([every])[every].result(TIMEOUT_S)
        if rules:
            for created in self._admin.create_acls([_binding(rule) for rule in rules]).values():
                created.result(TIMEOUT_S)

        def are_there() -> bool:
            return len(self._admin.describe_acls(every).result(TIMEOUT_S)) == len(rules)

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
LOGIN = f'{_PLAIN} username="{ADMIN}" password="{PASSWORD}" user_{ADMIN}="{PASSWORD}";'
SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": f"User:{ADMIN}",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.admin.plain.sasl.jaas.config": LOGIN,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.retention.ms": "-1",
    "remote.log.storage.system.enable": "false",
}


def _kafka_settings(client_port: int, admin_port: int, controller_port: int) -> dict[str, str]:
    client, admin = f"127.0.0.1:{client_port}", f"127.0.0.1:{admin_port}"
    controller = f"127.0.0.1:{controller_port}"
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
        "listener.name.controller.plain.sasl.jaas.config": LOGIN,
    }


ISOTHERM_SETTINGS = {
    **SETTINGS,
    "listeners": "PLAINTEXT://127.0.0.1:0,ADMIN://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,ADMIN:SASL_PLAINTEXT",
}


@pytest.fixture(scope="module")
def both(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Isotherm, Kafka]]:
    ports = free_ports(3)
    directory = tmp_path_factory.mktemp("kafka")
    with (
        running_kafka(directory, _kafka_settings(*ports)) as oracle,
        EmbeddedBroker(tmp_path_factory.mktemp("isotherm"), ISOTHERM_SETTINGS) as broker,
    ):
        sides = Isotherm(broker), Kafka(oracle, f"127.0.0.1:{ports[1]}")
        yield sides


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


def _set_up(server: str) -> None:
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
            return _NOT_YET.isdisjoint(each.error_code for each in codes)

        wait_until(is_done, f"{api.name} on {server}")


def _topic_ids(server: str) -> dict[str, str]:
    answer = ask(server, request_frame(ApiKey.METADATA, 12, {"topics": None}))
    assert isinstance(answer, bytes)
    topics = read_answer(ApiKey.METADATA, 12, answer).topics
    return {topic.name: str(topic.topic_id) for topic in topics}


def ask_as_admin(server: str, frame: bytes) -> bytes | str:
    with RawClient(server) as client:
        assert client.log_in_plain(ADMIN, PASSWORD).error_code is ErrorCode.none
        client.send_frame(frame)
        return client.receive_frame() or CLOSED


Compared: TypeAlias = Callable[[Any], Any]


def found(
    side: Isotherm | Kafka,
    api: ApiKey,
    version: int,
    fields: Mapping[str, Any],
    *,
    as_admin: bool,
    compared: Compared,
) -> Any:
    """What is compared of an answer. By default the error codes by the things that they belong to,
    and the names and operations."""
    frame = request_frame(api, version, fields)
    answer = ask_as_admin(side.admin_server, frame) if as_admin else ask(side.server, frame)
    if isinstance(answer, str):
        return answer
    try:
        response = read_answer(api, version, answer)
    except ProtocolError:
        return answer
    if api in (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS):
        # Kafka creates its internal topics at their first use.
        topics = tuple(each for each in response.topics if not (each.name or "").startswith("__"))
        response = dataclasses.replace(response, topics=topics)
    return compared(response)


def decided(response: Any) -> Any:
    codes = {path: ErrorCode(each.error_code).name for path, each in outcomes(response).items()}
    return codes, sorted(_shown(response))


_REFUSALS = {each for each in ErrorCode if each.name.endswith("authorization_failed")}
_NAMING = ("group_id", "name", "topic", "transactional_id", "partition_index", "partition")


def _code(field: tuple[str, Any]) -> ErrorCode:
    name, value = field
    return ErrorCode(value) if name.endswith("error_code") else ErrorCode.none


# Texts, and what each broker has of its own. Refused items are told apart by their names.
_NOT_COMPARED = {"error_message", "throttle_time", "topic_id"}


def refused(response: Any) -> Any:
    return sorted(_refused(response))


def _refused(value: Any, path: str = "", *, is_refused: bool = False) -> Iterator[str]:
    if isinstance(value, tuple):
        for each in value:
            yield from _refused(each, path, is_refused=is_refused)
    elif dataclasses.is_dataclass(value):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        is_refused = is_refused or not _REFUSALS.isdisjoint(map(_code, fields.items()))
        name = next((str(fields[key]) for key in _NAMING if key in fields), "")
        for key, inner in fields.items():
            if key not in _NOT_COMPARED:
                yield from _refused(inner, f"{path}[{name}]/{key}", is_refused=is_refused)
    elif is_refused and value not in (None, "", b""):  # which say the same, as an empty list does
        yield f"{path}={bytes(value) if isinstance(value, memoryview) else value!r}"


def _shown(value: Any, path: str = "") -> Iterator[str]:
    """The information that an answer reveals: authorized operations, and the names in lists."""
    if isinstance(value, tuple):
        for each in value:
            yield from _shown(each, path)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if field.name.endswith("authorized_operations") or field.name in (
                "group_id",
                "transactional_id",
                "topic_config_error_code",
            ):
                yield f"{path}/{field.name}={inner}"
            else:
                yield from _shown(inner, f"{path}/{field.name}")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_access_is_decided_as_by_kafka(both: tuple[Isotherm, Kafka], scenario: str) -> None:
    """Each request is sent in its first and its last version."""
    assert_same(both, SCENARIOS[scenario], {api: set(SERVED[api]) for api in REQUESTS})


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_access_is_decided_as_by_kafka_in_every_version(
    both: tuple[Isotherm, Kafka], scenario: str
) -> None:
    every = {api: range(SERVED[api].min, SERVED[api].max + 1) for api in REQUESTS}
    assert_same(both, SCENARIOS[scenario], every)


@pytest.mark.parametrize("scenario", ["no ACL", "description denied"])
def test_refusals_have_kafkas_fields(both: tuple[Isotherm, Kafka], scenario: str) -> None:
    """Every field of a refused item, or answer, in every version. Texts may differ."""
    every = {api: range(SERVED[api].min, SERVED[api].max + 1) for api in REQUESTS}
    assert_same(both, SCENARIOS[scenario], every, compared=refused)


def test_super_user_is_answered_as_by_kafka(both: tuple[Isotherm, Kafka]) -> None:
    denied = [rule._replace(permission=DENY, principal=f"User:{ADMIN}") for rule in EVERYTHING]
    assert_same(both, denied, {api: set(SERVED[api]) for api in REQUESTS}, as_admin=True)


def assert_same(
    both: tuple[Isotherm, Kafka],
    rules: Sequence[Rule],
    versions: Mapping[ApiKey, Iterable[int]],
    *,
    as_admin: bool = False,
    compared: Compared = decided,
) -> None:
    topic_ids = []
    for side in both:
        side.set_acls(EVERYTHING)
        _set_up(side.server)
        topic_ids.append(_topic_ids(side.server))
        side.set_acls(rules)
    differences = []
    for api, requests in REQUESTS.items():
        for version, fields in itertools.product(sorted(versions[api]), requests):
            fitted = [fitting(api, version, fields, ids) for ids in topic_ids]
            if None in fitted:
                continue
            ours, theirs = (
                found(side, api, version, each or {}, as_admin=as_admin, compared=compared)
                for side, each in zip(both, fitted, strict=True)
            )
            if ours != theirs:
                if isinstance(ours, list) and isinstance(theirs, list):
                    ours, theirs = sorted({*ours} - {*theirs}), sorted({*theirs} - {*ours})
                differences.append(
                    f"{api.name} {version} {fitted[0]}\n  isotherm {ours}\n  kafka    {theirs}"
                )
    assert not differences, "\n".join(differences)


def test_every_api_with_a_check_is_asked() -> None:
    assert {ApiKey(key) for key in APIS} - NOT_ASKED == REQUESTS.keys()
