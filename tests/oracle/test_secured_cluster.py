"""A cluster with TLS and logins on every connection: a controller and a broker of Kafka, two
brokers of ours.
"""

from __future__ import annotations

import socket
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from isotherm.client.broker_probe import check_brokers
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import BrokerUnreachableError, SaslAuthenticationError
from isotherm.protocol.api_keys import ApiKey
from oracle.cluster_members import TIER_SETTINGS, IsothermMember, KafkaMember
from oracle.kafka_cluster import ControllerOracle
from tests.support.certificates import issue
from tests.support.conditions import wait_until
from tests.support.raw_client import RawClient
from tests.support.secured_broker import PASSWORDS, SECRET, jaas

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

TIMEOUT_S = 300
ISOTHERM, KAFKA, OTHER_ISOTHERM = 1, 2, 3
MEMBERS = {ISOTHERM: IsothermMember, KAFKA: KafkaMember, OTHER_ISOTHERM: IsothermMember}


def secured(folder: Path) -> dict[str, str]:
    """Security settings of brokers and controllers.

    Both have the same listener names; only protocols differ.
    """
    authority = issue("authority")
    (folder / "ca.pem").write_bytes(authority.certificate_pem)
    node = issue("node", authority).write_pem(folder / "node.pem")
    users = jaas("PLAIN").replace(";", f' user_alice="{SECRET}";')
    trust = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
    }
    client = {
        **trust,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": jaas("PLAIN"),
    }
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(node),
        **trust,
        # Without the prefix Kafka leaves it without effect on listeners with SASL.
        "listener.name.plaintext.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plaintext.sasl.enabled.mechanisms": ",".join(PASSWORDS),
        **{
            f"listener.name.plaintext.{each.lower()}.sasl.jaas.config": jaas(each)
            for each in PASSWORDS[1:]
        },
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": users,
        "listener.name.controller.plain.sasl.jaas.config": users,
        **{f"rlmm.config.remote.log.metadata.common.client.{k}": v for k, v in client.items()},
        # The manager's clients act as brokers: they present the node's certificate too.
        "rlmm.config.remote.log.metadata.common.client.ssl.keystore.type": "PEM",
        "rlmm.config.remote.log.metadata.common.client.ssl.keystore.location": str(node),
    }


class Cluster:
    def __init__(self, folder: Path) -> None:
        settings = secured(folder)
        brokers = {**settings, "inter.broker.listener.name": "PLAINTEXT"}
        controllers = {key: text for key, text in settings.items() if not key.startswith("rlmm")}
        (folder / "bucket").mkdir()
        self.controller = ControllerOracle(folder / "controller", controllers)
        self.members = {
            node_id: kind(
                folder / f"broker-{node_id}",
                self.controller,
                node_id,
                folder / "bucket",
                {**TIER_SETTINGS, **brokers},
            )
            for node_id, kind in MEMBERS.items()
        }
        common = "rlmm.config.remote.log.metadata.common.client."
        self.client = librdkafka_properties(
            {
                "bootstrap.servers": "",
                **{k.removeprefix(common): v for k, v in settings.items() if k.startswith(common)},
            }
        )

    def start(self) -> None:
        self.controller.start()
        with ThreadPoolExecutor(len(self.members)) as executor:
            for started in [executor.submit(member.start) for member in self.members.values()]:
                started.result()
        servers = ",".join(member.bootstrap_server for member in self.members.values())
        self.client["bootstrap.servers"] = servers

    def kill(self) -> None:
        for member in self.members.values():
            member.kill()
        self.controller.kill()


@pytest.fixture(scope="module")
def cluster(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("secured"))
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.mark.parametrize("leader", MEMBERS)
def test_partition_is_replicated_and_its_transaction_ends(cluster: Cluster, leader: int) -> None:
    """Followers, coordinators that send markers, and members at the controller all log in."""
    topic = f"led-by-{leader}"
    replicas = [leader, *(each for each in MEMBERS if each != leader)]
    admin = AdminClient(cluster.client)
    new = NewTopic(topic, 1, replica_assignment=[replicas], config={"min.insync.replicas": "3"})
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    producer = Producer(
        {
            **cluster.client,
            "transactional.id": f"{topic}-{uuid.uuid4()}",
            "transaction.timeout.ms": 900_000,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for number in range(100):
        producer.produce(topic, b"%d" % number)
    producer.commit_transaction(TIMEOUT_S)
    consumer = Consumer({**cluster.client, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(values) < 100:
        assert time.monotonic() < deadline
        values += [
            message.value() or b"" for message in consumer.consume(100, 1) if not message.error()
        ]
    consumer.close()
    assert values == [b"%d" % number for number in range(100)]
    partition = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0]
    assert (partition.leader, set(partition.isrs)) == (leader, set(MEMBERS))


@pytest.mark.parametrize("node_id", [ISOTHERM, KAFKA])
def test_probe_finds_what_is_wrong_on_brokers_of_both_kinds(cluster: Cluster, node_id: int) -> None:
    address = cluster.members[node_id].bootstrap_server
    right = {**cluster.client, "bootstrap.servers": address}
    check_brokers(right, timeout_s=TIMEOUT_S)
    without_login = {key: text for key, text in right.items() if not key.startswith("sasl.")}
    own_certificate = ("ssl.key.pem", "ssl.certificate.pem")
    for wrong, cause in (
        ({**right, "sasl.password": "wrong"}, "Authentication failed"),
        ({**without_login, "security.protocol": "SSL"}, "a login is expected there"),
        ({k: v for k, v in right.items() if k not in own_certificate}, "certificate"),
        ({**right, "ssl.ca.pem": issue("other").certificate_pem.decode()}, "is not trusted"),
    ):
        with pytest.raises((SaslAuthenticationError, BrokerUnreachableError)) as refused:
            check_brokers(wrong, timeout_s=TIMEOUT_S)
        assert f"{address}: " in str(refused.value)
        assert cause in str(refused.value)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_is_what_kafkas_server_takes(cluster: Cluster, mechanism: str) -> None:
    user, secret = "bob,=", "p,ässwörd = 1"
    admin = AdminClient(cluster.client)
    info = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], 8192)
    change = UserScramCredentialUpsertion(user, info, secret.encode())
    admin.alter_user_scram_credentials([change])[user].result(TIMEOUT_S)
    login = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": secret}
    for node_id in (KAFKA, ISOTHERM):
        address = cluster.members[node_id].bootstrap_server
        properties = {**cluster.client, **login, "bootstrap.servers": address}
        # A broker has the credential once it has read the metadata.
        wait_until(lambda properties=properties: takes_login(properties), timeout_s=TIMEOUT_S)
        with pytest.raises(SaslAuthenticationError):
            check_brokers({**properties, "sasl.password": "wrong"}, timeout_s=TIMEOUT_S)


def takes_login(properties: Mapping[str, str]) -> bool:
    try:
        check_brokers(properties, timeout_s=TIMEOUT_S)
    except SaslAuthenticationError:
        return False
    return True


def scram_challenge(cluster: Cluster, folder: Path, node_id: int, user: str) -> bytes:
    """The salt and the iterations that a broker shows of a user to a client that has not logged
    in.
    """
    chain = folder / "client.pem"
    chain.write_text(cluster.client["ssl.key.pem"] + cluster.client["ssl.certificate.pem"])
    context = ssl.create_default_context(cadata=cluster.client["ssl.ca.pem"])
    context.check_hostname = False
    context.load_cert_chain(chain)
    address = cluster.members[node_id].bootstrap_server
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), TIMEOUT_S)
    with RawClient(address, context.wrap_socket(plain)) as client:
        client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
        first = f"n,,n={user},r=nonce".encode().hex()
        answer = client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=first)
    return bytes(answer.auth_bytes).partition(b",")[2]


def test_unknown_users_look_the_same_on_all_our_brokers(cluster: Cluster, tmp_path: Path) -> None:
    """The secret is a record of Kafka's controller.

    A broker has it once it has read the metadata.
    """

    def shown(node_id: int) -> list[bytes]:
        users = ("nobody", "no-one")
        return [scram_challenge(cluster, tmp_path, node_id, user) for user in users]

    wait_until(lambda: shown(ISOTHERM) == shown(OTHER_ISOTHERM), timeout_s=TIMEOUT_S)
    nobodys, no_ones = shown(ISOTHERM)
    assert nobodys != no_ones
    for node_id in (ISOTHERM, OTHER_ISOTHERM):
        member = cluster.members[node_id]
        assert isinstance(member, IsothermMember)
        assert "the cluster's secret is not recorded" not in member.log_text


def test_secret_is_in_no_log(cluster: Cluster) -> None:
    for member in cluster.members.values():
        if isinstance(member, IsothermMember):
            assert member.log_text.strip()
            assert SECRET not in member.log_text
