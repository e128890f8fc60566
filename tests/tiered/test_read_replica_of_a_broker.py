"""A read replica in front of a broker, whose store does not answer for a while."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NoReturn

import pytest

from isotherm.broker.read_replica import ReplicaNode
from isotherm.errors import RemoteStorageError
from tests.support.conditions import wait_until
from tests.support.embedded_replica import EmbeddedReplica

TOPIC = "kept"


def test_a_history_that_could_not_be_read_is_read_once_the_store_answers(
    tiers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def write(*values: bytes) -> None:
        tiers.produce(TOPIC, *((b"k", value) for value in values))

    tiers.create_topic(TOPIC)
    write(b"0", b"1", b"2")
    tiers.expect_remote_ends(TOPIC, 0, 1)
    bucket, upstream = tiers.directory / "bucket", tiers.broker.bootstrap_servers
    with EmbeddedReplica(tmp_path / "scratch", bucket, upstream=upstream) as replica:

        def end_of_tier() -> int:
            partition = replica.node.services.replica_manager.find_partition(TOPIC, None, 0)
            return int(partition.log.log_end_offset)

        def fail(*arguments: object) -> NoReturn:
            raise RemoteStorageError("the store does not answer")

        wait_until(lambda: end_of_tier() == 2, "the first history")
        assert isinstance(replica.node, ReplicaNode)
        monkeypatch.setattr(replica.node._replica.storage, "fetch_index", fail)
        write(b"3", b"4")
        wait_until(lambda: "the store does not answer" in caplog.text, "a failed look")
        assert end_of_tier() == 2
        monkeypatch.undo()
        wait_until(lambda: end_of_tier() == 4, "the history")
