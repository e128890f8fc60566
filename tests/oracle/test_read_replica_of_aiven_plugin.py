"""A read replica in front of Apache Kafka with Aiven's plugin, and over what that cluster leaves.

`scripts/aiven-plugin.sh` builds the plugin; the tests are skipped without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from Crypto.PublicKey import RSA

from bench.replica_servers import await_tier
from oracle.consumed_records import ConsumedRecord, consume_all
from oracle.kafka import EAGER_SETTINGS, KafkaOracle, running_kafka
from oracle.tiered_topic import fill_tiered_topic
from tests.oracle.moving_topic import committed_records, moving_topic
from tests.support.conditions import wait_until
from tests.support.embedded_replica import EmbeddedReplica

PLUGIN = Path(os.environ.get("AIVEN_PLUGIN", ".tools/aiven-plugin")).absolute()
"""The folder of its jars."""
TOPIC = "tiered-by-aiven"
COMMITTED = "read_committed"
PREFIX = "kafka/"


@pytest.fixture(scope="module", params=["plain", "compressed and encrypted"])
def transforms(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    """Keys of the plugin, which are the replica's too."""
    if request.param == "plain":
        return {}
    folder, key = tmp_path_factory.mktemp("keys"), RSA.generate(2048)
    private, public = folder / "private.pem", folder / "public.pem"
    private.write_bytes(key.export_key(pkcs=8))
    public.write_bytes(key.public_key().export_key())
    return {
        "rsm.config.compression.enabled": "true",
        "rsm.config.encryption.enabled": "true",
        "rsm.config.encryption.key.pair.id": "k1",
        "rsm.config.encryption.key.pairs": "k1",
        "rsm.config.encryption.key.pairs.k1.public.key.file": str(public),
        "rsm.config.encryption.key.pairs.k1.private.key.file": str(private),
    }


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory, transforms: Mapping[str, str]) -> Path:
    return tmp_path_factory.mktemp("bucket")


@pytest.fixture(scope="module")
def aiven_kafka(
    kafka_tools: Path,
    tmp_path_factory: pytest.TempPathFactory,
    bucket: Path,
    transforms: Mapping[str, str],
) -> Iterator[KafkaOracle]:
    if not PLUGIN.is_dir():
        pytest.skip("Aiven's plugin is not there: scripts/aiven-plugin.sh, or set AIVEN_PLUGIN")
    plugin = "io.aiven.kafka.tieredstorage"
    settings = {
        **EAGER_SETTINGS,
        "rlmm.config.remote.log.metadata.topic.num.partitions": "8",
        "remote.log.storage.manager.class.name": f"{plugin}.RemoteStorageManager",
        "remote.log.storage.manager.class.path": f"{PLUGIN}/*",
        "rsm.config.storage.backend.class": f"{plugin}.storage.filesystem.FileSystemStorage",
        "rsm.config.storage.root": str(bucket),
        "rsm.config.key.prefix": PREFIX,
        "rsm.config.chunk.size": "65536",
        **transforms,
    }
    with running_kafka(tmp_path_factory.mktemp("kafka"), settings) as oracle:
        await_tier(oracle.bootstrap_server)
        fill_tiered_topic(oracle.bootstrap_server, oracle.log_dir, TOPIC, 2, 6000)
        yield oracle


def replica_of(
    scratch: Path, bucket: Path, transforms: Mapping[str, str], upstream: str | None
) -> EmbeddedReplica:
    settings = {"rsm.config.key.prefix": PREFIX, **transforms}
    return EmbeddedReplica(scratch, bucket, settings, upstream=upstream)


def read_all(server: str, topic: str) -> list[ConsumedRecord]:
    return list(consume_all(server, topic, isolation_level=COMMITTED))


def remote_bytes(replica: EmbeddedReplica) -> float:
    """The bytes that the replica has read from the bucket for its clients."""
    name = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
    return replica.node.metrics.registry.get_sample_value(name, {"topic": ""}) or 0.0


@pytest.mark.nightly
@pytest.mark.slow
def test_consumers_get_what_kafka_gives_them_and_its_history_when_it_is_gone(
    aiven_kafka: KafkaOracle, bucket: Path, transforms: Mapping[str, str], tmp_path: Path
) -> None:
    server = aiven_kafka.bootstrap_server
    with replica_of(tmp_path / "beside", bucket, transforms, server) as replica:
        got = read_all(replica.bootstrap_servers, TOPIC)
        assert len(got) == 6000
        assert got == read_all(server, TOPIC)
        of_history = remote_bytes(replica)
        assert of_history > 0
        # Written, tiered and trimmed meanwhile, with transactions of which some are aborted.
        with moving_topic(server, "moving-aiven", before=60, meanwhile=60) as writer:
            metadata = replica.node.services.metadata
            wait_until(lambda: "moving-aiven" in metadata.image.topics_by_name, "the new topic")
            writer.start()
            read_all(replica.bootstrap_servers, "moving-aiven")
            writer.join()
            got = read_all(replica.bootstrap_servers, "moving-aiven")
            assert len(got) == committed_records(120)
            assert got == read_all(server, "moving-aiven")
            assert remote_bytes(replica) > of_history
    expected = read_all(server, TOPIC)
    aiven_kafka.kill()
    with replica_of(tmp_path / "alone", bucket, transforms, None) as replica:
        got = read_all(replica.bootstrap_servers, TOPIC)
    ends_of = {n: max(each.offset for each in got if each.partition == n) for n in (0, 1)}
    assert min(ends_of.values()) > 1000
    assert got == [each for each in expected if each.offset <= ends_of[each.partition]]
