"""What a client of a read replica gets behind the remote tier while no leader answers."""

from __future__ import annotations

import asyncio
import logging

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.peers.tail_reader import TailReader, TailRequest, TailTerms
from isotherm.broker.peers.upstream_client import UpstreamClient
from isotherm.client.node_address import NodeAddress
from isotherm.clock import SystemClock
from isotherm.testing.local_servers import free_ports
from isotherm.types import TopicPartition


class Away(UpstreamClient):
    """A cluster with one broker, which does not listen."""

    def __init__(self) -> None:
        (port,) = free_ports(1)
        self.properties = {"bootstrap.servers": f"127.0.0.1:{port}"}
        self.addresses = {1: NodeAddress("127.0.0.1", port)}


def test_a_leader_that_does_not_answer_is_an_error_that_each_client_retries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Java's consumer ends with IllegalStateException at NETWORK_EXCEPTION in an answer."""
    caplog.set_level(logging.INFO)
    reader = TailReader(Away(), SystemClock())
    requests = [
        TailRequest(TopicPartition("t", 0), 1, 100, 1000),
        TailRequest(TopicPartition("t", 1), 2, 100, 1000),  # nobody knows broker 2
    ]
    try:
        answers = asyncio.run(reader.read(requests, TailTerms(0, 1, 1000, 0)))
    finally:
        reader.close()
    assert [(answer.partition, answer.error_code) for answer in answers] == [
        (0, ErrorCode.not_leader_or_follower),
        (1, ErrorCode.not_leader_or_follower),
    ]
    assert "leader does not answer fetches behind the remote tier broker=1" in caplog.text
