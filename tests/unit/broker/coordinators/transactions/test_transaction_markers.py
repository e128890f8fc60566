"""Which markers the leader of a partition takes."""

from __future__ import annotations

from typing import Any

import pytest

from isotherm.broker.coordinators.transactions.transaction_endings import EndMarker
from isotherm.broker.coordinators.transactions.transaction_state import (
    EPOCH_MAX,
    TRANSACTION_V0,
    TRANSACTION_V2,
    ProducerIdAndEpoch,
)
from isotherm.errors import InvalidProducerEpochError
from isotherm.types import TopicPartition


def test_late_marker_of_version_2_does_not_end_the_next_transaction(broker: Any) -> None:
    """Kafka:

    ProducerAppendInfo.checkProducerEpoch (KIP-890). Each end of version 2 raises the epoch.
    """

    async def scenario() -> None:
        broker.create_topic()

        def mark(epoch: int, version: int = TRANSACTION_V2) -> None:
            marker = EndMarker(ProducerIdAndEpoch(7, epoch), True, 0, version)
            broker.markers.append(marker, TopicPartition("t", 0))

        broker.append(ProducerIdAndEpoch(7, 1000))
        with pytest.raises(InvalidProducerEpochError, match="not above the open transaction's"):
            mark(1000)
        mark(1001)
        mark(1001)  # a retry: nothing is open
        broker.append(ProducerIdAndEpoch(7, 1001))
        with pytest.raises(InvalidProducerEpochError):
            mark(1001)
        mark(1001, TRANSACTION_V0)
        # No epoch lies above this one.
        broker.append(ProducerIdAndEpoch(7, EPOCH_MAX))
        mark(EPOCH_MAX)
        assert [epoch for _, epoch, _ in broker.markers_in()] == [1001, 1001, 1001, EPOCH_MAX]

    broker.run(scenario)
