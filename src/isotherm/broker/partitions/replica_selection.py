"""Which replica a consumer reads from (KIP-392): one in its own rack, if the leader is in another.

Source: Kafka ReplicaManager.findPreferredReadReplica, RackAwareReplicaSelector.
"""

from __future__ import annotations

from typing import NamedTuple

from isotherm.broker.partitions.partition import Partition
from isotherm.broker.replication.in_sync_replicas import FindBroker
from isotherm.types import BrokerId, Offset


class ConsumerRack(NamedTuple):
    """A consumer's rack, and the listener that its connections use. `find_broker` tells the brokers'."""

    rack_id: str
    listener_name: str
    broker_id: BrokerId
    find_broker: FindBroker

    def has(self, broker_id: BrokerId) -> bool:
        """Whether a broker that the consumer can reach is in its rack."""
        broker = self.find_broker(broker_id)
        return (
            broker is not None
            and not broker.fenced
            and broker.rack == self.rack_id
            and broker.endpoint(self.listener_name) is not None
        )


def preferred_replica(
    partition: Partition, fetch_offset: Offset, rack: ConsumerRack
) -> BrokerId | None:
    """The follower to read from; None if it is this broker, whether it leads or follows.

    Only in-sync followers that have the offset count. Of several the one with the most records is
    taken, then the one that was caught up last. One that lags behind would be given up by the
    consumer, and be found again.
    """
    if not partition.is_leader or partition.is_alone or rack.has(rack.broker_id):
        return None
    in_sync = partition.isr
    found = [
        (state.log_end_offset, state.last_caught_up_ms, broker_id)
        for broker_id, state in partition.follower_states().items()
        if broker_id in in_sync
        and state.log_start_offset <= fetch_offset <= state.log_end_offset
        and rack.has(broker_id)
    ]
    return max(found)[-1] if found else None
