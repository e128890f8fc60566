"""Which tests run against the mutants of a module (mutants.py). Each set of tests that several
modules share has a name here."""

from __future__ import annotations

GROUPS = ("tests/unit/broker/coordinators/groups",)
CLASSIC_GROUPS = (
    "tests/unit/broker/coordinators/groups/test_classic_group.py",
    "tests/unit/broker/coordinators/groups/test_classic_waits.py",
    "tests/unit/broker/coordinators/groups/test_classic_members.py",
    "tests/unit/broker/coordinators/groups/test_group_records.py",
    "tests/property/broker/test_classic_group_histories.py",
)
OFFSET_RECORDS = (*GROUPS, "tests/golden/test_consumer_offsets.py")
CONSUMER_GROUPS = (
    "tests/unit/broker/coordinators/groups/test_consumer_group.py",
    "tests/unit/broker/coordinators/groups/test_consumer_checks.py",
    "tests/unit/broker/coordinators/groups/test_consumer_replay.py",
    "tests/unit/broker/coordinators/groups/test_hosted_members.py",
    "tests/unit/broker/coordinators/groups/test_loading.py",
    "tests/property/broker/test_consumer_group_histories.py",
)
HOSTED_MEMBERS = (
    "tests/unit/broker/coordinators/groups/test_hosted_members.py",
    "tests/unit/broker/coordinators/groups/test_embedded_protocol.py",
)
ASSIGNORS = (
    "tests/unit/broker/coordinators/groups/assignors/test_assignors.py",
    "tests/unit/broker/coordinators/groups/test_consumer_group.py",
    "tests/property/broker/test_assignors.py",
)
TRANSACTIONS = ("tests/unit/broker/coordinators/transactions",)
TRANSACTION_RECORDS = (*TRANSACTIONS, "tests/golden/test_transaction_state.py")
JSON_VALUES = (
    "tests/unit/spark/tables/test_json_values.py",
    "tests/unit/spark/tables/test_json_schema_values.py",
    "tests/unit/spark/tables/test_registry_values.py",
)
LOG = ("tests/unit/log",)
LOG_MANAGER = ("tests/unit/log/test_log_manager.py", "tests/unit/log/test_log_copy.py")
CLEANER = ("tests/unit/log/cleaner",)
LOADED_LOGS = (
    "tests/unit/log/test_log_loader.py",
    "tests/unit/log/test_loaded_directory.py",
    "tests/unit/log/test_log_manager.py",
    "tests/unit/log/test_partition_log.py",
)
RECOVERY = (
    *LOADED_LOGS,
    "tests/unit/log/test_recovery.py",
    "tests/unit/log/test_segment_split.py",
)
TASKS = ("tests/unit/remote/tasks",)
PERIODIC_TASKS = ("tests/unit/remote/test_periodic_tasks.py",)
PARTITION_ROLES = (
    "tests/unit/remote/test_partition_roles.py",
    "tests/unit/remote/test_followed_partitions.py",
)
READER_POOL = ("tests/unit/remote/reading/test_reader_pool.py",)
REMOTE_LOG_MANAGER = (
    "tests/unit/remote/test_remote_log_manager.py",
    *PARTITION_ROLES,
    *READER_POOL,
)
FOLLOWED_PARTITIONS = ("tests/unit/remote/test_followed_partitions.py",)
TIER_METRICS = ("tests/unit/remote/test_tier_metrics.py",)
LINEAGE = ("tests/unit/remote/history/test_lineage.py",)
PLUGIN = ("tests/unit/remote/test_plugin.py",)
INDEX_CACHE = ("tests/unit/remote/indexes/test_index_cache.py",)
COMPACTED = ("tests/unit/remote/compaction/test_compacted_history.py",)
READER = ("tests/unit/remote/reading/test_remote_log_reader.py", *COMPACTED)
SCRUB = ("tests/unit/remote/scrub",)
OVERLAPS = ("tests/unit/spark/test_overlapping_segments.py",)
MANIFEST = (
    "tests/unit/remote/storage/manifest/test_aiven_manifest.py",
    "tests/unit/remote/storage/manifest/test_chunk_index.py",
)
COMPACTION = ("tests/unit/remote/compaction", "tests/unit/remote/rewriting")
ERASURE = ("tests/unit/remote/erasure",)
COMPACT_PLAN = (*COMPACTION, "tests/unit/spark/jobs/test_compact_plan.py")
METADATA = ("tests/unit/remote/metadata",)
CLEANUP = ("tests/unit/remote/tasks/test_cleanup.py",)
COLUMNAR_FOLD = (
    "tests/unit/remote/metadata/folding/test_columnar_fold.py",
    "tests/property/remote/test_columnar_fold.py",
)
STALE_DECISIONS = ("tests/unit/remote/tasks/test_stale_decisions.py",)
TABLE_UPKEEP = ("tests/unit/spark/tables/test_upkeep_plan.py",)

# Module -> its tests. Modules that decide or delete come first.
TESTS: dict[str, tuple[str, ...]] = {
    "remote/tasks/copy.py": (*TASKS, *TIER_METRICS, *COMPACTED),
    "remote/tasks/copy_plan.py": TASKS,
    "remote/tasks/expiration.py": (*TASKS, *TIER_METRICS),
    "remote/tasks/expiration_plan.py": (*TASKS, *LINEAGE),
    "remote/tasks/partition_deletion.py": (*TASKS, *PARTITION_ROLES),
    "remote/tasks/tier.py": (*TASKS, *REMOTE_LOG_MANAGER),
    "remote/tasks/local_deletion.py": (*TASKS, *COMPACTED),
    "remote/tasks/backoff.py": ("tests/unit/remote/tasks/test_backoff.py",),
    "remote/tasks/cancellation.py": (*TASKS, *FOLLOWED_PARTITIONS),
    "remote/tasks/cleanup.py": (
        *CLEANUP,
        *TASKS,
        "tests/unit/remote/metadata/test_kip_1266_scenarios.py",
    ),
    "remote/tasks/copies_in_progress.py": ("tests/unit/remote/tasks/test_copies_in_progress.py",),
    "remote/tasks/follow.py": (*FOLLOWED_PARTITIONS, "tests/unit/remote/tasks/test_follow.py"),
    "remote/tasks/pending_deletions.py": ("tests/unit/remote/tasks/test_pending_deletions.py",),
    "remote/tasks/retried_work.py": ("tests/unit/remote/tasks/test_retried_work.py",),
    "remote/tasks/deletion_rules.py": ("tests/unit/remote/tasks/test_deletion_rules.py",),
    "remote/metadata/state/cache.py": (
        *METADATA,
        "tests/property/remote/test_metadata_cache.py",
        "tests/property/remote/test_columnar_fold.py",
        "tests/property/remote/test_segment_fold.py",
    ),
    "remote/metadata/state/lifecycle.py": (
        "tests/unit/remote/metadata/state/test_lifecycle.py",
        "tests/unit/remote/metadata/state/test_cache.py",
    ),
    "remote/metadata/topic/keyed_writes.py": (*METADATA, *COMPACTION, *STALE_DECISIONS),
    "remote/metadata/upkeep/migration.py": (
        "tests/property/remote/test_metadata_migration.py",
        "tests/unit/remote/metadata/upkeep/test_migration_survey.py",
    ),
    "remote/metadata/topic/event_writer.py": (
        *METADATA,
        *STALE_DECISIONS,
        "tests/property/remote/test_several_metadata_writers.py",
    ),
    "remote/rewriting/adoption.py": ("tests/unit/remote/rewriting/test_adoption.py",),
    "broker/partitions/adopted_history.py": ("tests/unit/remote/rewriting/test_adoption.py",),
    "remote/rewriting/finisher.py": COMPACTION,
    "remote/rewriting/run_recovery.py": (
        *COMPACTION,
        "tests/unit/spark/jobs/test_compact_recovery.py",
    ),
    "client/partition_fetch.py": (
        "tests/unit/client/test_partition_fetch.py",
        "tests/unit/spark/reading/test_tail.py",
    ),
    "client/record_headers.py": ("tests/unit/client/test_record_headers.py",),
    "spark/topic_pattern.py": ("tests/unit/spark/test_topic_pattern.py",),
    "spark/reading/consumed_tail.py": (
        "tests/unit/spark/reading/test_message_columns.py",
        "tests/unit/spark/reading/test_consumed_tail.py",
    ),
    "spark/reading/tail.py": ("tests/unit/spark/reading/test_tail.py",),
    "spark/streaming/stream_offsets.py": ("tests/unit/spark/streaming/test_stream_offsets.py",),
    "spark/streaming/stream_query.py": ("tests/unit/spark/streaming/test_stream_query.py",),
    "spark/plan/epoch_claims.py": OVERLAPS,
    "spark/reading/epoch_proof.py": OVERLAPS,
    "remote/reading/described_log.py": ("tests/unit/remote/reading/test_described_log.py",),
    "remote/storage/manifest/aiven_manifest.py": MANIFEST,
    "remote/storage/manifest/chunk_index.py": MANIFEST,
    "spark/jobs/quarantine.py": (
        "tests/spark/test_sweep_recheck.py",
        "tests/spark/test_bucket_pages.py",
    ),
    "spark/jobs/recheck.py": ("tests/spark/test_sweep_recheck.py",),
    "spark/jobs/table.py": ("tests/spark/test_table.py",),
    "spark/jobs/erase_tables.py": (
        "tests/unit/spark/jobs/test_erase_tables.py",
        "tests/spark/test_erase_tables.py",
    ),
    "spark/jobs/table_retention.py": (
        "tests/unit/spark/jobs/test_table_retention.py",
        "tests/spark/test_table_retention.py",
    ),
    "spark/tables/column_fit.py": ("tests/unit/spark/tables/test_registry_values.py",),
    "spark/tables/column_limits.py": ("tests/unit/spark/tables/test_column_limits.py",),
    "spark/tables/iceberg_snapshots.py": (
        "tests/unit/spark/tables/test_topic_tables.py",
        "tests/unit/spark/tables/test_iceberg_bounds.py",
        *TABLE_UPKEEP,
    ),
    "spark/tables/json_numbers.py": JSON_VALUES,
    "spark/tables/json_refusals.py": JSON_VALUES,
    "spark/tables/json_schema_values.py": JSON_VALUES,
    "spark/tables/json_values.py": JSON_VALUES,
    "spark/tables/value_types.py": (
        *JSON_VALUES,
        "tests/unit/spark/tables/test_debezium_values.py",
    ),
    "spark/tables/iceberg_upkeep.py": TABLE_UPKEEP,
    "log/partition_log.py": (*LOG, *TASKS),
    "log/log_manager.py": LOG_MANAGER,
    "log/retired_directories.py": LOG_MANAGER,
    "broker/partitions/replication/replica_fetcher.py": (
        "tests/unit/broker/partitions/replication/test_replica_fetcher.py",
    ),
    "broker/partitions/replication/tier_follower.py": (
        "tests/unit/broker/partitions/replication/test_tier_follower.py",
    ),
    "broker/partitions/replica_roles.py": ("tests/unit/broker/partitions/test_replica_roles.py",),
    "broker/partitions/log_dir_moves.py": (
        "tests/unit/broker/partitions/test_log_dir_moves.py",
        "tests/unit/broker/apis/test_alter_replica_log_dirs.py",
    ),
    "log/retention.py": (
        "tests/unit/log/test_retention.py",
        "tests/unit/log/test_partition_log.py",
        *TASKS,
    ),
    "log/roll.py": ("tests/unit/log/test_roll.py", "tests/unit/log/test_partition_log.py"),
    "log/cleaner/cleaner.py": CLEANER,
    "log/mending.py": ("tests/unit/remote/tasks/test_copy.py",),
    "log/index_file.py": ("tests/unit/log/test_index_file.py",),
    "log/transaction_index_checkpoint.py": (
        "tests/unit/log/test_transaction_index_checkpoint.py",
        "tests/unit/log/test_log_loader.py",
    ),
    "segment/leader_epochs.py": ("tests/unit/segment/test_leader_epochs.py",),
    "segment/offset_index.py": ("tests/unit/segment/test_offset_index.py",),
    "segment/time_index.py": ("tests/unit/segment/test_time_index.py",),
    "segment/transaction_index.py": ("tests/unit/segment/test_transaction_index.py",),
    "remote/plugin.py": PLUGIN,
    "remote/storage/checked_storage_manager.py": PLUGIN,
    "remote/metadata/checked_metadata_manager.py": PLUGIN,
    "remote/indexes/index_cache.py": INDEX_CACHE,
    "remote/indexes/index_cache_entry.py": (
        "tests/unit/remote/indexes/test_index_cache_entry.py",
        *INDEX_CACHE,
        *COMPACTED,
    ),
    "remote/indexes/index_cache_statistics.py": INDEX_CACHE,
    "remote/scrub/rebuilt_transactions.py": (
        "tests/unit/remote/scrub/test_rebuilt_transactions.py",
    ),
    "remote/history/lineage.py": (*LINEAGE, *TASKS, *COMPACTED),
    "remote/history/batch_chain.py": ("tests/unit/remote/history/test_batch_chain.py",),
    "remote/history/epoch_columns.py": ("tests/property/remote/test_epoch_columns.py",),
    "remote/history/holes.py": ("tests/unit/remote/history/test_holes.py",),
    "remote/history/transaction_data.py": ("tests/unit/remote/history/test_transaction_data.py",),
    "remote/reading/checked_batches.py": ("tests/unit/remote/reading/test_checked_batches.py",),
    "remote/reading/marker_proof.py": (
        "tests/property/remote/test_marker_proof.py",
        "tests/unit/remote/history/test_transaction_data.py",
        *READER,
    ),
    "remote/reading/range_memory.py": ("tests/unit/remote/reading/test_range_memory.py",),
    "remote/reading/read_ahead.py": (
        "tests/unit/remote/reading/test_read_ahead.py",
        "tests/unit/remote/reading/test_segment_reader.py",
    ),
    "remote/reading/read_wait.py": (
        "tests/unit/remote/reading/test_read_wait.py",
        "tests/unit/remote/reading/test_segment_range.py",
    ),
    "remote/reading/reader_pool.py": (
        *READER_POOL,
        "tests/unit/remote/test_remote_log_manager.py",
    ),
    "remote/reading/remote_log_reader.py": READER,
    "remote/reading/read_request.py": READER,
    "remote/reading/remote_offset_lookup.py": (
        "tests/unit/remote/reading/test_remote_offset_lookup.py",
        *COMPACTED,
    ),
    "remote/reading/tier_border.py": READER,
    "remote/storage/segment_blocks.py": ("tests/unit/remote/storage/test_segment_blocks.py",),
    "remote/reading/segment_range.py": ("tests/unit/remote/reading/test_segment_range.py",),
    "remote/reading/segment_reader.py": ("tests/unit/remote/reading/test_segment_reader.py",),
    "remote/metadata/folding/columnar_fold.py": COLUMNAR_FOLD,
    "remote/metadata/folding/decoded_run.py": (
        "tests/unit/remote/metadata/folding/test_decoded_run.py",
        *COLUMNAR_FOLD,
    ),
    "remote/metadata/folding/fold.py": (
        "tests/unit/remote/metadata/folding/test_fold.py",
        "tests/unit/remote/metadata/folding/test_fold_of_a_replica.py",
        "tests/unit/remote/metadata/folding/test_followed_partition.py",
        *COLUMNAR_FOLD,
    ),
    "remote/metadata/folding/followed_partition.py": (
        "tests/unit/remote/metadata/folding/test_followed_partition.py",
    ),
    "remote/metadata/folding/lives.py": (
        "tests/unit/remote/metadata/folding/test_lives.py",
        *COLUMNAR_FOLD,
    ),
    "remote/metadata/folding/segment_fold.py": ("tests/property/remote/test_segment_fold.py",),
    "remote/metadata/folding/selected_partitions.py": (
        "tests/unit/remote/metadata/folding/test_followed_partition.py",
        *COLUMNAR_FOLD,
    ),
    "remote/metadata/wire/events.py": (
        "tests/unit/remote/metadata/wire/test_events.py",
        "tests/unit/remote/metadata/folding/test_fold.py",
    ),
    "remote/metadata/wire/keys.py": ("tests/unit/remote/metadata/wire/test_keys.py",),
    "remote/metadata/wire/serde.py": ("tests/unit/remote/metadata/wire/test_serde.py",),
    "remote/quota.py": ("tests/unit/remote/test_quota.py",),
    "broker/coordinators/groups/classic_group.py": CLASSIC_GROUPS,
    "remote/bounded_pool.py": ("tests/unit/remote/test_bounded_pool.py",),
    "remote/reading/damage_log.py": ("tests/unit/remote/reading/test_damage_log.py",),
    "remote/periodic_tasks.py": PERIODIC_TASKS,
    "remote/partition_roles.py": REMOTE_LOG_MANAGER,
    "remote/remote_log_manager.py": REMOTE_LOG_MANAGER,
    "remote/task_schedule.py": REMOTE_LOG_MANAGER,
    "remote/remote_tier_metrics.py": (*TIER_METRICS, *REMOTE_LOG_MANAGER),
    "remote/segment_metadata.py": ("tests/unit/remote/test_segment_metadata.py",),
    "remote/threads.py": PERIODIC_TASKS,
    "broker/coordinators/transactions/transaction_coordinator.py": TRANSACTIONS,
    "broker/coordinators/transactions/transaction_state.py": TRANSACTIONS,
    "broker/coordinators/transactions/transaction_endings.py": TRANSACTIONS,
    "broker/coordinators/transactions/transaction_markers.py": TRANSACTIONS,
    "broker/coordinators/transactions/marker_sender.py": TRANSACTIONS,
    "broker/coordinators/transactions/verifications.py": TRANSACTIONS,
    "remote/scrub/index_checks.py": SCRUB,
    "remote/scrub/log_batches.py": SCRUB,
    "remote/scrub/producer_checks.py": SCRUB,
    "remote/scrub/record_checks.py": SCRUB,
    "remote/scrub/segment_scrub.py": SCRUB,
    "remote/rewriting/journal.py": COMPACT_PLAN,
    "remote/compaction/compacted_piece.py": COMPACT_PLAN,
    "remote/erasure/certificate.py": ERASURE,
    "remote/erasure/erased_piece.py": ERASURE,
    "remote/erasure/redaction.py": ERASURE,
    "remote/compaction/newest_keys.py": COMPACT_PLAN,
    "remote/rewriting/pieces.py": COMPACT_PLAN,
    "remote/rewriting/segment_rewrite.py": COMPACT_PLAN,
    "remote/rewriting/staging.py": COMPACT_PLAN,
    "remote/metadata/topic/kafka_topic.py": (
        "tests/unit/remote/metadata/topic/test_kafka_topic.py",
        "tests/unit/remote/metadata/topic/test_kafka_topic_reads.py",
    ),
    "remote/metadata/upkeep/migration_views.py": (
        "tests/unit/remote/metadata/upkeep/test_migration_views.py",
        "tests/unit/remote/metadata/upkeep/test_migration_survey.py",
    ),
    "broker/coordinators/groups/classic_checks.py": CLASSIC_GROUPS,
    "broker/coordinators/groups/classic_members.py": CLASSIC_GROUPS,
    "broker/coordinators/groups/classic_protocol.py": CLASSIC_GROUPS,
    "broker/coordinators/groups/group_snapshot.py": CLASSIC_GROUPS,
    "broker/coordinators/groups/consumer_checks.py": CONSUMER_GROUPS,
    "broker/coordinators/groups/consumer_group.py": CONSUMER_GROUPS,
    "broker/coordinators/groups/consumer_member.py": CONSUMER_GROUPS,
    "broker/coordinators/groups/consumer_records.py": CONSUMER_GROUPS,
    "broker/coordinators/groups/member_heartbeat.py": CONSUMER_GROUPS,
    "broker/coordinators/groups/consumer_replay.py": CONSUMER_GROUPS,
    "broker/coordinators/groups/assignors/range.py": ASSIGNORS,
    "broker/coordinators/groups/assignors/uniform.py": ASSIGNORS,
    "broker/coordinators/groups/embedded_protocol.py": HOSTED_MEMBERS,
    "broker/coordinators/groups/group_migration.py": HOSTED_MEMBERS,
    "broker/coordinators/groups/hosted_members.py": HOSTED_MEMBERS,
    "broker/coordinators/groups/consumer_coordinator.py": GROUPS,
    "broker/coordinators/groups/group_coordinator.py": GROUPS,
    "broker/coordinators/groups/group_offsets.py": GROUPS,
    "broker/coordinators/groups/group_log.py": GROUPS,
    "broker/coordinators/groups/group_records.py": OFFSET_RECORDS,
    "broker/coordinators/groups/group_shard.py": GROUPS,
    "broker/coordinators/groups/offset_coordinator.py": GROUPS,
    "broker/coordinators/groups/offset_reader.py": GROUPS,
    "broker/coordinators/groups/offsets.py": GROUPS,
    "broker/coordinators/groups/offsets_topic.py": GROUPS,
    "broker/coordinators/groups/old_records.py": OFFSET_RECORDS,
    "broker/coordinators/groups/shards.py": GROUPS,
    "broker/coordinators/groups/stored_offset.py": GROUPS,
    "broker/coordinators/groups/topic_catalog.py": GROUPS,
    "broker/apis/transaction_admission.py": TRANSACTIONS,
    "broker/apis/produce_admission.py": TRANSACTIONS,
    "broker/coordinators/transactions/remote_admission.py": TRANSACTIONS,
    "broker/coordinators/transactions/transaction_log.py": (
        "tests/unit/broker/coordinators/transactions/test_transaction_log.py",
    ),
    "broker/coordinators/transactions/transaction_records.py": TRANSACTION_RECORDS,
    "broker/coordinators/transactions/transaction_shard.py": TRANSACTIONS,
    "broker/coordinators/transactions/transaction_snapshot.py": TRANSACTION_RECORDS,
    "log/epoch_recovery.py": RECOVERY,
    "log/log_loader.py": RECOVERY,
    "log/lost_offsets.py": ("tests/unit/log/test_lost_offsets.py", *RECOVERY),
    "log/recovery.py": RECOVERY,
    "log/segment_check.py": ("tests/unit/log/test_segment_check.py", *RECOVERY),
    "log/leader_epoch_cache.py": ("tests/unit/log/test_leader_epoch_cache.py", *LOADED_LOGS),
    "log/producer_replay.py": (
        "tests/property/log",
        "tests/unit/log/test_producer_state.py",
        *LOADED_LOGS,
    ),
    "log/producer_snapshots.py": ("tests/unit/log/test_producer_snapshots.py", *LOADED_LOGS),
    "log/producer_state.py": ("tests/unit/log/test_producer_state.py", *LOADED_LOGS),
    "log/batch_scan.py": LOG,
    "log/deletion_queue.py": LOG,
    "log/log_segment.py": LOG,
    "log/partition_directories.py": (
        "tests/unit/log/test_partition_directories.py",
        "tests/unit/log/test_log_manager.py",
    ),
    "log/segment_split.py": (
        "tests/unit/log/test_segment_split.py",
        "tests/unit/log/test_log_loader.py",
    ),
    "log/segment_swap.py": (*LOG, "tests/fault/test_cleaner_crash.py"),
    "log/cleaner/choice.py": CLEANER,
    "log/cleaner/chunk_reader.py": CLEANER,
    "log/cleaner/log_cleaner_manager.py": CLEANER,
    "log/cleaner/log_cleaner.py": CLEANER,
    "log/cleaner/map_build.py": CLEANER,
    "log/cleaner/offset_map.py": CLEANER,
    "log/cleaner/rewrite.py": CLEANER,
    "log/cleaner/segment_writer.py": CLEANER,
    "log/locked_dirs.py": ("tests/unit/log/test_locked_dir.py", *LOG_MANAGER),
    "log/locked_dir.py": (
        "tests/unit/log/test_locked_dir.py",
        "tests/unit/log/test_log_manager.py",
    ),
}
