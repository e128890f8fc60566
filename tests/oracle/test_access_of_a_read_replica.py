"""Each user sees through a read replica what it sees at the cluster: Apache Kafka with its
StandardAuthorizer, and a replica in front of it with the cluster's ACLs.

Users, rights and requests are those of test_access_matrix.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.apis.read_only import READING
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.local_servers import free_ports
from oracle.kafka import EAGER_SETTINGS, running_kafka
from oracle.tiered_topic import fill_tiered_topic
from oracle.topics import create_topic
from tests.oracle.access_answers import (
    HALF_AN_HOUR_MS,
    Side,
    answers_that_differ,
    begin_transaction,
    join_classic_group,
    join_consumer_group,
    prepare,
)
from tests.oracle.access_matrix import rules_by_user
from tests.oracle.access_requests import BROKER, REQUESTS
from tests.oracle.access_sides import (
    EVERYTHING,
    TOPICS,
    Kafka,
    kafka_settings,
    login_of,
)
from tests.support.embedded_replica import EmbeddedReplica
from tests.support.raw_client import RawClient

SETTINGS = {
    **EAGER_SETTINGS,
    "remote.log.storage.system.enable": "true",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.max.session.timeout.ms": str(HALF_AN_HOUR_MS),
    "group.consumer.session.timeout.ms": str(HALF_AN_HOUR_MS),
}
NOT_ASKED = frozenset(
    {
        # They take from the cluster what the other side is asked for next.
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        # The replica answers for itself: it has neither transactions nor the cluster's disks.
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.LIST_TRANSACTIONS,
    }
)
ASKED = [api for api in REQUESTS if api in READING - NOT_ASKED]
# The replica stands for all brokers.
OF_THE_BROKERS = frozenset(
    {
        "broker_id",
        "controller_id",
        "host",
        "isr_nodes",
        "leader_id",
        "node_id",
        "rack",
        "replica_nodes",
    }
)
# Of history they say where the tier ends. A fetch that may not wait may have no record yet.
OF_HISTORY = frozenset({"high_watermark", "last_stable_offset", "records"})
SHARE = 2


class _Replica(NamedTuple):
    server: str
    admin_server: str


@pytest.fixture(scope="module")
def sides(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Side, Side]]:
    rules = rules_by_user()
    directory = tmp_path_factory.mktemp("replica-matrix")
    ports, login = free_ports(3), login_of(rules)
    (directory / "kafka").mkdir()
    with running_kafka(directory / "kafka", {**kafka_settings(ports, login), **SETTINGS}) as oracle:
        kafka = Kafka(oracle, f"127.0.0.1:{ports[1]}")
        kafka.set_acls([*EVERYTHING, *(each for user in rules for each in rules[user])])
        fill_tiered_topic(kafka.server, oracle.log_dir, "known", 2, 4000)
        for name in TOPICS[1:]:
            create_topic(kafka.server, name, 2, {"remote.storage.enable": "true"})
        theirs = Side(kafka)
        prepare(theirs)
        with RawClient(kafka.server) as client:
            begin_transaction(client)
            join_classic_group(client)
            join_consumer_group(client)
        logins = {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
        }
        with EmbeddedReplica(
            directory / "replica",
            oracle.remote_dir,
            logins,
            upstream=kafka.server,
            acls="upstream",
            listener="SASL_PLAINTEXT://127.0.0.1:0",
        ) as replica:
            ours = Side(_Replica(replica.bootstrap_servers, replica.bootstrap_servers))
            ours.topic_ids = theirs.topic_ids
            yield ours, theirs
            ours.close()
        theirs.close()


def requests_of(api: ApiKey) -> Iterator[dict[str, Any]]:
    """What the replica answers for the cluster: neither its brokers' configuration nor share
    groups."""
    for fields in REQUESTS[api]:
        if api is ApiKey.FIND_COORDINATOR and fields["key_type"] == SHARE:
            continue
        if api is ApiKey.DESCRIBE_CONFIGS:
            served = [e for e in fields["resources"] if e["resource_type"] != BROKER]
            yield {**fields, "resources": served}
        else:
            yield dict(fields)


@pytest.mark.parametrize("api", ASKED, ids=lambda api: api.name)
def test_rights_are_those_at_the_cluster(sides: tuple[Side, Side], api: ApiKey) -> None:
    versions = APIS[api].versions
    differences = answers_that_differ(
        sides,
        api,
        sorted({versions.min, versions.max}),
        requests=requests_of(api),
        not_compared=OF_THE_BROKERS | OF_HISTORY,
    )
    assert not differences, "\n".join(differences)
