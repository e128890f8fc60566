"""Selects the replica that a consumer reads from (KIP-392): one in its rack, if the leader is in
another.

Source: Kafka ReplicaManager.findPreferredReadReplica, RackAwareReplicaSelector.
"""

from __future__ import annotations

from typing import NamedTuple

from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.replication.in_sync_replicas import FindBroker
from isotherm.types import BrokerId, Offset


class ConsumerRack(NamedTuple):
    """A consumer's rack and listener. `find_broker` gives the racks and endpoints of brokers."""

    rack_id: str
    listener_name: str
    broker_id: BrokerId
    find_broker: FindBroker

    def has(self, broker_id: BrokerId) -> bool:
        """Whether the broker is in the consumer's rack and reachable at its listener."""
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
    """The follower that the consumer should read from; None to read from this broker.

    Candidates are in-sync followers that have the offset. The one with the highest log end offset
    wins, then the one that was caught up last. A consumer would leave a lagging follower, and be
    sent back to it. Read replicas have all offsets, and one of those in the rack owns the partition
    there.
    """
    if not partition.is_leader or partition.is_alone or rack.has(rack.broker_id):
        return None
    if (owner := partition.owner_in_rack(rack.rack_id)) is not None:
        return owner
    in_sync = partition.isr
    candidates = [
        (state.log_end_offset, state.last_caught_up_ms, broker_id)
        for broker_id, state in partition.follower_states().items()
        if broker_id in in_sync
        and state.log_start_offset <= fetch_offset <= state.log_end_offset
        and rack.has(broker_id)
    ]
    return max(candidates)[-1] if candidates else None
