"""The APIs that the broker serves.

A new API needs a module in `isotherm.broker.apis` and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isotherm.broker.apis import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_share_group_state,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    initialize_share_group_state,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    read_share_group_state,
    read_share_group_state_summary,
    refused,
    share_group_describe,
    share_group_heartbeat,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_share_group_state,
    write_txn_markers,
)
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import VersionRange, api_name

_DECLARED: Sequence[Api] = (
    add_offsets_to_txn.API,
    add_partitions_to_txn.API,
    alter_client_quotas.API,
    alter_configs.API,
    alter_partition_reassignments.API,
    alter_replica_log_dirs.API,
    alter_share_group_offsets.API,
    alter_user_scram_credentials.API,
    consumer_group_describe.API,
    consumer_group_heartbeat.API,
    create_acls.API,
    create_partitions.API,
    create_topics.API,
    delete_acls.API,
    delete_groups.API,
    delete_records.API,
    delete_share_group_offsets.API,
    delete_share_group_state.API,
    delete_topics.API,
    describe_acls.API,
    describe_client_quotas.API,
    describe_cluster.API,
    describe_configs.API,
    describe_groups.API,
    describe_log_dirs.API,
    describe_producers.API,
    describe_quorum.API,
    describe_share_group_offsets.API,
    describe_topic_partitions.API,
    describe_transactions.API,
    describe_user_scram_credentials.API,
    elect_leaders.API,
    end_txn.API,
    fetch.API,
    find_coordinator.API,
    heartbeat.API,
    incremental_alter_configs.API,
    init_producer_id.API,
    initialize_share_group_state.API,
    join_group.API,
    leave_group.API,
    list_config_resources.API,
    list_groups.API,
    list_offsets.API,
    list_partition_reassignments.API,
    list_transactions.API,
    metadata.API,
    offset_commit.API,
    offset_delete.API,
    offset_fetch.API,
    offset_for_leader_epoch.API,
    produce.API,
    read_share_group_state.API,
    read_share_group_state_summary.API,
    share_group_describe.API,
    share_group_heartbeat.API,
    sync_group.API,
    txn_offset_commit.API,
    unregister_broker.API,
    update_features.API,
    write_share_group_state.API,
    write_txn_markers.API,
    *refused.APIS,
)

APIS: Mapping[int, Api] = {api.key: api for api in (*_DECLARED, api_versions.declare(_DECLARED))}


SERVED: Mapping[int, VersionRange] = {int(key): APIS[key].versions for key in sorted(APIS)}


def served_table() -> list[tuple[int, str, str]]:
    """(API key, Kafka's name of the API, versions as "0-3" or "0") per API, in the order of the
    keys.
    """
    return [
        (key, api_name(key), str(low) if low == high else f"{low}-{high}")
        for key, (low, high) in SERVED.items()
    ]
