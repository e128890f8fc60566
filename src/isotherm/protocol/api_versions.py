"""The APIs this broker serves, and in which versions: the one table behind dispatch and ApiVersions.

The ranges are those of Apache Kafka trunk for the APIs that exist here, so that a client finds in
Isotherm what it finds in Kafka: old clients sit at the low end (aiokafka asks for ApiVersions 0,
librdkafka for DescribeConfigs 1, kafkajs for DeleteTopics 1), new ones at the high end.

Produce is advertised from version 0 although nothing below 3 is served. librdkafka before 2.1
turns compression off without a word when Produce 0 is missing from the table (KAFKA-18659); Kafka
advertises the same. A request below 3 gets UNSUPPORTED_VERSION like any other.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema


class ApiKey(enum.IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class VersionRange(NamedTuple):
    """Both ends inclusive, as in Kafka's ApiVersions response."""

    min: int
    max: int


SERVED: Mapping[int, VersionRange] = MappingProxyType(
    {
        ApiKey.PRODUCE: VersionRange(3, 13),
        ApiKey.FETCH: VersionRange(4, 18),
        ApiKey.LIST_OFFSETS: VersionRange(1, 11),
        ApiKey.METADATA: VersionRange(0, 13),
        ApiKey.OFFSET_COMMIT: VersionRange(2, 10),
        ApiKey.OFFSET_FETCH: VersionRange(1, 10),
        ApiKey.FIND_COORDINATOR: VersionRange(0, 6),
        ApiKey.JOIN_GROUP: VersionRange(0, 9),
        ApiKey.HEARTBEAT: VersionRange(0, 4),
        ApiKey.LEAVE_GROUP: VersionRange(0, 5),
        ApiKey.SYNC_GROUP: VersionRange(0, 5),
        ApiKey.DESCRIBE_GROUPS: VersionRange(0, 6),
        ApiKey.LIST_GROUPS: VersionRange(0, 5),
        ApiKey.SASL_HANDSHAKE: VersionRange(0, 1),
        ApiKey.API_VERSIONS: VersionRange(0, 4),
        ApiKey.CREATE_TOPICS: VersionRange(2, 7),
        ApiKey.DELETE_TOPICS: VersionRange(1, 6),
        ApiKey.DELETE_RECORDS: VersionRange(0, 2),
        ApiKey.INIT_PRODUCER_ID: VersionRange(0, 5),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: VersionRange(2, 4),
        ApiKey.ADD_PARTITIONS_TO_TXN: VersionRange(0, 5),
        ApiKey.ADD_OFFSETS_TO_TXN: VersionRange(0, 4),
        ApiKey.END_TXN: VersionRange(0, 5),
        ApiKey.WRITE_TXN_MARKERS: VersionRange(1, 2),
        ApiKey.TXN_OFFSET_COMMIT: VersionRange(0, 5),
        ApiKey.DESCRIBE_ACLS: VersionRange(1, 3),
        ApiKey.CREATE_ACLS: VersionRange(1, 3),
        ApiKey.DELETE_ACLS: VersionRange(1, 3),
        ApiKey.DESCRIBE_CONFIGS: VersionRange(1, 4),
        ApiKey.ALTER_CONFIGS: VersionRange(0, 2),
        ApiKey.ALTER_REPLICA_LOG_DIRS: VersionRange(1, 2),
        ApiKey.DESCRIBE_LOG_DIRS: VersionRange(1, 5),
        ApiKey.SASL_AUTHENTICATE: VersionRange(0, 2),
        ApiKey.CREATE_PARTITIONS: VersionRange(0, 3),
        ApiKey.CREATE_DELEGATION_TOKEN: VersionRange(1, 3),
        ApiKey.RENEW_DELEGATION_TOKEN: VersionRange(1, 2),
        ApiKey.EXPIRE_DELEGATION_TOKEN: VersionRange(1, 2),
        ApiKey.DESCRIBE_DELEGATION_TOKEN: VersionRange(1, 3),
        ApiKey.DELETE_GROUPS: VersionRange(0, 2),
        ApiKey.ELECT_LEADERS: VersionRange(0, 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: VersionRange(0, 1),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: VersionRange(0, 0),
        ApiKey.OFFSET_DELETE: VersionRange(0, 0),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: VersionRange(0, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: VersionRange(0, 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
        ApiKey.DESCRIBE_QUORUM: VersionRange(0, 2),
        ApiKey.UPDATE_FEATURES: VersionRange(0, 2),
        ApiKey.DESCRIBE_CLUSTER: VersionRange(0, 2),
        ApiKey.DESCRIBE_PRODUCERS: VersionRange(0, 0),
        ApiKey.UNREGISTER_BROKER: VersionRange(0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
        ApiKey.LIST_TRANSACTIONS: VersionRange(0, 2),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: VersionRange(0, 1),
        ApiKey.CONSUMER_GROUP_DESCRIBE: VersionRange(0, 1),
        ApiKey.LIST_CONFIG_RESOURCES: VersionRange(0, 1),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: VersionRange(0, 0),
        ApiKey.SHARE_GROUP_HEARTBEAT: VersionRange(1, 1),
        ApiKey.SHARE_GROUP_DESCRIBE: VersionRange(1, 1),
        ApiKey.SHARE_FETCH: VersionRange(1, 2),
        ApiKey.SHARE_ACKNOWLEDGE: VersionRange(1, 2),
        ApiKey.ADD_RAFT_VOTER: VersionRange(0, 1),
        ApiKey.REMOVE_RAFT_VOTER: VersionRange(0, 0),
        ApiKey.INITIALIZE_SHARE_GROUP_STATE: VersionRange(0, 0),
        ApiKey.READ_SHARE_GROUP_STATE: VersionRange(0, 0),
        ApiKey.WRITE_SHARE_GROUP_STATE: VersionRange(0, 1),
        ApiKey.DELETE_SHARE_GROUP_STATE: VersionRange(0, 0),
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: VersionRange(0, 1),
        ApiKey.STREAMS_GROUP_HEARTBEAT: VersionRange(0, 0),
        ApiKey.STREAMS_GROUP_DESCRIBE: VersionRange(0, 0),
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: VersionRange(0, 1),
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: VersionRange(0, 0),
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: VersionRange(0, 0),
    }
)

ADVERTISED: Mapping[int, VersionRange] = MappingProxyType(
    {**SERVED, ApiKey.PRODUCE: VersionRange(0, SERVED[ApiKey.PRODUCE].max)}
)


def is_served(api_key: int, api_version: int) -> bool:
    served = SERVED.get(api_key)
    return served is not None and served.min <= api_version <= served.max


@functools.cache
def request_class(api_key: int, api_version: int) -> type[Any]:
    """kio's class of a request; call it only for versions that `is_served` knows."""
    return load_request_schema(api_key, api_version)


@functools.cache
def response_class(api_key: int, api_version: int) -> type[Any]:
    """kio's class of the response to a request of this key and version."""
    return load_response_schema(api_key, api_version)
