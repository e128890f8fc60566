"""Who may read at a read replica: by the ACLs of its cluster, or of a file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from isotherm.broker.cluster.replica_cluster import PARTITIONS
from isotherm.client.cluster_client import ClusterClient
from isotherm.errors import ConfigError
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from tests.support.conditions import wait_until
from tests.support.embedded_replica import EmbeddedReplica

TIMEOUT_S = 300
OPEN, CLOSED = "open", "closed"
LISTENER = "SASL_PLAINTEXT://127.0.0.1:0"
LOGINS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' user_ann="a" user_bob="b";'
    ),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("cluster"), settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        config = {**TIERED_TOPIC, "segment.bytes": "1048576"}
        for future in admin.create_topics(
            [NewTopic(name, 1, 1, config=config) for name in (OPEN, CLOSED)]
        ).values():
            future.result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(2400):
            producer.produce((OPEN, CLOSED)[number % 2], b"%04d" % number + b"x" * 1000)
        assert producer.flush(TIMEOUT_S) == 0
        for topic in (OPEN, CLOSED):
            log = broker.node.services.replica_manager.find_partition(topic, None, 0).log
            wait_until(lambda log=log: log.highest_offset_in_remote_storage > 0, topic)
        yield broker


def fetch_code(server: str, user: str, password: str, topic: str) -> ErrorCode:
    """The error code of a fetch of the first record, which comes with records if there is none."""
    client = ClusterClient(
        {
            "bootstrap.servers": server,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }
    )
    place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 4096}
    fields = {
        "replica_id": -1,
        "max_wait": datetime.timedelta(seconds=TIMEOUT_S),
        "min_bytes": 1,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [place]}],
        "forgotten_topics_data": (),
        "rack_id": "",
    }
    try:
        answer = client.ask_any(ApiKey.FETCH, fields, newest=12)
    finally:
        client.close()
    (partition,) = (each for topic in answer.responses for each in topic.partitions)
    assert bool(partition.records) == (partition.error_code is ErrorCode.none)
    return partition.error_code


def seen(server: str) -> dict[str, list[ErrorCode]]:
    """What each user gets of OPEN and CLOSED."""
    users = {"ann": "a", "bob": "b"}
    return {
        user: [fetch_code(server, user, password, topic) for topic in (OPEN, CLOSED)]
        for user, password in users.items()
    }


DENIED = ErrorCode.topic_authorization_failed
ANN_READS_OPEN = {"ann": [ErrorCode.none, DENIED], "bob": [DENIED, DENIED]}


def test_a_file_of_acls_says_who_reads(cluster: EmbeddedBroker, tmp_path: Path) -> None:
    acl = {"resourceType": "TOPIC", "name": OPEN, "principal": "User:ann", "operation": "READ"}
    file = tmp_path / "acls.jsonl"
    file.write_text(json.dumps(acl) + "\n\n")
    with EmbeddedReplica(
        tmp_path / "s", cluster.directory / "bucket", LOGINS, acls=str(file), listener=LISTENER
    ) as replica:
        # `seen` does not try again, as clients do while a partition is not read.
        wait_until(lambda: replica.node.metrics.value(PARTITIONS) == 2, "both partitions")
        assert seen(replica.bootstrap_servers) == ANN_READS_OPEN


def test_acls_of_the_cluster_say_who_reads(cluster: EmbeddedBroker, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    binding = AclBinding(
        ResourceType.TOPIC, OPEN, ResourcePatternType.LITERAL, "User:ann", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    admin.create_acls([binding])[binding].result(TIMEOUT_S)
    with EmbeddedReplica(
        tmp_path,
        cluster.directory / "bucket",
        LOGINS,
        upstream=cluster.bootstrap_servers,
        acls="upstream",
        listener=LISTENER,
    ) as replica:
        assert seen(replica.bootstrap_servers) == ANN_READS_OPEN


def test_a_replica_that_may_not_read_the_metadata_topic_says_so(tmp_path: Path) -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    (tmp_path / "bucket").mkdir()
    with EmbeddedBroker(tmp_path / "cluster", settings) as broker:
        replica = EmbeddedReplica(
            tmp_path / "s", tmp_path / "bucket", upstream=broker.bootstrap_servers
        )
        with pytest.raises(ConfigError, match="its metadata topic may not be read"):
            replica.start()


@pytest.mark.parametrize(
    ("listener", "settings", "acls", "reason"),
    [
        ("PLAINTEXT://:0", {}, None, "other machines could read all history"),
        (
            "PLAINTEXT://0.0.0.0:0",
            {"advertised.listeners": "PLAINTEXT://localhost:9192"},
            None,
            "other machines could read all history",
        ),
        ("PLAINTEXT://127.0.0.1:0", {}, "upstream", "no cluster to take ACLs from"),
        (LISTENER, {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}, None, "no SCRAM credentials"),
    ],
)
def test_what_cannot_be_safe_is_refused(
    cluster: EmbeddedBroker,
    tmp_path: Path,
    listener: str,
    settings: dict[str, str],
    acls: str | None,
    reason: str,
) -> None:
    with pytest.raises(ConfigError, match=reason):
        EmbeddedReplica(
            tmp_path, cluster.directory / "bucket", settings, acls=acls, listener=listener
        ).start()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line=1"),
        ('{"resourceType": "TOPIC"}', "name"),
        (
            '{"resourceType": "TABLE", "name": "t", "principal": "User:a", "operation": "READ"}',
            "TABLE is none of",
        ),
        (
            '{"resourceType": "TOPIC", "name": "t", "principal": "ann", "operation": "READ"}',
            "principalType:principalName",
        ),
    ],
)
def test_a_wrong_line_of_the_file_is_named(
    cluster: EmbeddedBroker, tmp_path: Path, line: str, reason: str
) -> None:
    file = tmp_path / "acls.jsonl"
    file.write_text(line)
    with pytest.raises(ConfigError, match=f"not an ACL path={file}.*{reason}"):
        EmbeddedReplica(tmp_path / "s", cluster.directory / "bucket", acls=str(file)).start()
