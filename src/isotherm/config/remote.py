"""Configuration of the remote tier (RemoteLogManagerConfig in Kafka)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isotherm.config.definition import (
    BOOLEAN,
    DOUBLE,
    INT,
    LONG,
    LONG_MAX,
    STRING,
    Check,
    at_least,
    between,
    key,
    optional,
)

NATIVE_STORAGE_MANAGER = "isotherm.remote.storage.object_store.ObjectStoreRemoteStorageManager"
NATIVE_METADATA_MANAGER = "isotherm.remote.metadata.topic_based.TopicBasedRemoteLogMetadataManager"
# Kafka's class of the same manager. Operators have it in their files, so it is accepted.
KAFKAS_METADATA_MANAGER = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)

_NOT_EMPTY = Check(lambda value: value is None or value != "", "not empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogManagerConfig:
    """Broker-level keys of the remote tier.

    rsm_config and rlmm_config have the keys with the two prefixes, without the prefix. The storage
    manager and the metadata manager check them themselves.
    """

    remote_log_storage_system_enable: bool = key(
        BOOLEAN, False, "Whether this broker has a remote tier at all."
    )
    remote_log_storage_manager_class_name: str = key(
        STRING,
        NATIVE_STORAGE_MANAGER,
        "Class that moves bytes to and from the remote tier.",
        check=_NOT_EMPTY,
    )
    remote_log_storage_manager_impl_prefix: str = key(
        STRING,
        "rsm.config.",
        "Keys with this prefix are handed to the storage manager.",
        check=_NOT_EMPTY,
    )
    remote_log_metadata_manager_class_name: str = key(
        STRING,
        NATIVE_METADATA_MANAGER,
        "Class that keeps the state of remote segments; the default, by this or by Kafka's name for"
        " it, keeps it in the topic __remote_log_metadata.",
        check=_NOT_EMPTY,
    )
    remote_log_metadata_manager_impl_prefix: str = key(
        STRING,
        "rlmm.config.",
        "Keys with this prefix are handed to the metadata manager.",
        check=_NOT_EMPTY,
    )
    remote_log_metadata_compaction_initial_level: int = key(
        INT,
        1,
        "Level at which a new cluster starts the feature remote.log.metadata.compaction (KIP-1266):"
        " 1 keeps the metadata topic bounded, 0 writes Apache Kafka's own records. The level of an"
        " existing cluster is raised with kafka-features.sh, and never lowered. Isotherm's own"
        " key.",
        check=between(0, 1),
    )
    remote_log_metadata_custom_metadata_max_bytes: int = key(
        INT,
        128,
        "Largest custom metadata a storage manager may return for a segment (KIP-917). A"
        " partition of which it returns more is not copied until this changes; Kafka needs a"
        " restart.",
        check=at_least(0),
        dynamic=True,
    )
    remote_log_index_file_cache_total_size_bytes: int = key(
        LONG,
        1024 * 1024 * 1024,
        "Disk space for indexes fetched from the remote tier.",
        check=at_least(1),
        dynamic=True,
    )
    remote_log_index_file_cache_ttl_ms: int = key(
        LONG,
        900_000,
        "Time after its last use at which a cached index is dropped (KIP-1264);"
        " -1 keeps it until space is needed.",
        check=at_least(-1),
    )
    remote_log_index_file_cache_statistics_enable: bool = key(
        BOOLEAN,
        False,
        "Whether the index cache counts hits, misses, fetches and removals as metrics."
        " Isotherm's own key.",
    )
    remote_log_manager_copier_thread_pool_size: int = key(
        INT,
        10,
        "Threads that copy segments to the remote tier.",
        check=at_least(1),
        dynamic=True,
        thread_pool=True,
    )
    remote_log_manager_expiration_thread_pool_size: int = key(
        INT,
        10,
        "Threads that delete expired remote segments.",
        check=at_least(1),
        dynamic=True,
        thread_pool=True,
    )
    remote_log_manager_follower_thread_pool_size: int = key(
        INT,
        2,
        "Threads that follow the remote tier for partitions led elsewhere.",
        check=at_least(1),
        dynamic=True,
        thread_pool=True,
        no_effect="the threads for expired segments follow the remote tier too",
    )
    remote_log_manager_task_interval_ms: int = key(
        LONG,
        30_000,
        "Time between two runs of a partition's copy or expiration task.",
        check=at_least(1),
    )
    remote_log_manager_task_retry_backoff_ms: int = key(
        LONG, 500, "First pause after a failed task.", check=at_least(1)
    )
    remote_log_manager_task_retry_backoff_max_ms: int = key(
        LONG, 30_000, "Longest pause after failed tasks.", check=at_least(1)
    )
    remote_log_manager_task_retry_jitter: float = key(
        DOUBLE, 0.2, "Share of a pause that is random.", check=between(0, 0.5)
    )
    remote_log_reader_threads: int = key(
        INT,
        10,
        "Threads that read from the remote tier for fetch requests.",
        check=at_least(1),
        dynamic=True,
        thread_pool=True,
    )
    remote_log_reader_max_pending_tasks: int = key(
        INT,
        100,
        "Remote reads that may wait for a thread; one more is refused.",
        check=at_least(1),
    )
    remote_log_reader_read_ahead_max_bytes: int = key(
        LONG,
        256 * 1024 * 1024,
        "Memory for bytes fetched from the remote tier before they are asked for, over all"
        " readers. Isotherm's own key.",
        check=at_least(0),
    )
    remote_log_manager_copy_max_bytes_per_second: int = key(
        LONG,
        LONG_MAX,
        "Rate limit of copying to the remote tier (KIP-956).",
        check=at_least(1),
        dynamic=True,
    )
    remote_log_manager_copy_quota_window_num: int = key(
        INT,
        11,
        "Windows over which the rate of copying to the remote tier is measured.",
        check=at_least(1),
    )
    remote_log_manager_copy_quota_window_size_seconds: int = key(
        INT,
        1,
        "Length of such a window; also how long an unused rate may be caught up.",
        check=at_least(1),
    )
    remote_log_manager_fetch_max_bytes_per_second: int = key(
        LONG,
        LONG_MAX,
        "Rate limit of reading from the remote tier (KIP-956).",
        check=at_least(1),
        dynamic=True,
    )
    remote_log_manager_fetch_quota_window_num: int = key(
        INT,
        11,
        "Windows over which the rate of reading from the remote tier is measured.",
        check=at_least(1),
    )
    remote_log_manager_fetch_quota_window_size_seconds: int = key(
        INT,
        1,
        "Length of such a window; also how long an unused rate may be caught up.",
        check=at_least(1),
    )
    remote_fetch_max_wait_ms: int = key(
        INT,
        500,
        "Longest time a fetch waits for the remote tier before it is answered.",
        check=at_least(1),
        dynamic=True,
    )
    remote_list_offsets_request_timeout_ms: int = key(
        LONG,
        30_000,
        "Longest time a look-up by timestamp in the remote tier may take.",
        check=at_least(1),
        dynamic=True,
    )
    remote_log_metadata_manager_listener_name: str | None = key(
        optional(STRING),
        None,
        "Accepted for compatibility: the metadata topic is in process.",
        check=_NOT_EMPTY,
        no_effect="the metadata topic is read in process",
    )
    rsm_config: Mapping[str, str] = field(default_factory=dict)
    rlmm_config: Mapping[str, str] = field(default_factory=dict)

    @property
    def keeps_metadata_in_topic(self) -> bool:
        """Whether the metadata manager is the one that uses `__remote_log_metadata`."""
        topic_based = (NATIVE_METADATA_MANAGER, KAFKAS_METADATA_MANAGER)
        return self.remote_log_metadata_manager_class_name in topic_based
