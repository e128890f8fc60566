"""Configuration of the transaction coordinator (TransactionStateManagerConfig in Kafka)."""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.config.definition import BOOLEAN, INT, SHORT, at_least, key


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Broker-level keys of transactions and of `__transaction_state`."""

    transaction_max_timeout_ms: int = key(
        INT, 900_000, "Longest transaction timeout a producer may request.", check=at_least(1)
    )
    transactional_id_expiration_ms: int = key(
        INT,
        604_800_000,
        "Time without a transaction after which a transactional id is forgotten.",
        check=at_least(1),
    )
    transaction_coordinator_transactional_ids_max: int = key(
        INT,
        1_000_000,
        "Transactional ids that this broker coordinates; a further one is refused with"
        " POLICY_VIOLATION. Isotherm's own key. (Kafka has no bound.)",
        check=at_least(1),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = key(
        INT,
        3_600_000,
        "Time between two expirations of transactional ids.",
        check=at_least(1),
    )
    transaction_state_log_num_partitions: int = key(
        INT,
        50,
        "Partitions of __transaction_state. Fixed once the topic exists.",
        check=at_least(1),
    )
    transaction_state_log_replication_factor: int = key(
        SHORT,
        3,
        "Replicas of __transaction_state in a cluster; only used when the topic is created.",
        check=at_least(1),
    )
    transaction_state_log_min_isr: int = key(
        INT,
        2,
        "min.insync.replicas of __transaction_state in a cluster; only used when the topic is"
        " created.",
        check=at_least(1),
    )
    transaction_state_log_segment_bytes: int = key(
        INT, 104_857_600, "Segment size of __transaction_state.", check=at_least(1)
    )
    transaction_state_log_load_buffer_size: int = key(
        INT,
        5_242_880,
        "Bytes of __transaction_state read at a time when it is loaded.",
        check=at_least(1),
    )
    transaction_partition_verification_enable: bool = key(
        BOOLEAN,
        True,
        "Refuse transactional records to a partition that was not added to the transaction.",
        dynamic=True,
    )
