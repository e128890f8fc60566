"""The remote tier of a read replica: it is read. No partition is assigned to its tasks, so nothing
is copied to it or deleted from it."""

from __future__ import annotations

from isotherm.broker.surroundings import Surroundings
from isotherm.broker.tier.remote_tier import open_index_cache
from isotherm.config.broker import BrokerConfig
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.checked_storage_manager import checked_storage
from isotherm.remote.tasks.pending_deletions import PendingDeletions


def open_replica_tier(
    config: BrokerConfig,
    storage: RemoteStorageManager,
    metadata: RemoteLogMetadataManager,
    surroundings: Surroundings,
) -> RemoteLogManager:
    """The caller closes the manager, which closes `storage` and `metadata`."""
    checked = checked_storage(storage, surroundings.clock)
    return RemoteLogManager(
        config.remote,
        broker_id=config.node_id,
        storage=checked,
        metadata=metadata,
        index_cache=open_index_cache(config, checked, metadata, surroundings),
        pending_deletions=PendingDeletions(config.log_dirs[0], surroundings.fs),
        leader_epoch_of=lambda partition: None,
        is_tiered=lambda partition: True,
        clock=surroundings.clock,
        rng=surroundings.rng,
        metrics=surroundings.metrics,
    )
