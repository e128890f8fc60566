"""Requests for every API, about resources that a scenario's ACLs name and resources that they do
not.

`fitting` leaves out fields that a version lacks. A topic id is written `id:NAME`, since each broker
has a different one. Requests that would change the answers to later ones come last.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from isotherm.protocol.api_keys import ApiKey, request_class
from oracle.raw_requests import annotations_of

_BATCH = (
    "00000000000000000000003affffffff02e99b8dd80000000000000000018bcfe568000000018bcfe56800"
    "ffffffffffffffffffffffffffff0000000110000000026b027600"
)
_NAMES = ("known", "knot", "other", "missing")
_GROUPS = ("g", "group", "h", "gc")
_IDS = ("t", "tx", "u")
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
_RESOURCES = [(TOPIC, name) for name in _NAMES] + [(GROUP, "g"), (GROUP, "h"), (BROKER, "1")]

_ANY_ACL = {
    "resource_type_filter": 2,
    "resource_name_filter": "nobody-has-this",
    "pattern_type_filter": 3,
    "operation": 1,
    "permission_type": 1,
}
_FETCH = {
    "replica_id": -1,
    "max_wait": 0,
    "min_bytes": 0,
    "max_bytes": 1_000_000,
    "session_epoch": -1,
}


def produced(name: str) -> dict[str, Any]:
    partitions = [{"index": 0, "records": _BATCH}]
    return {"name": name, "topic_id": f"id:{name}", "partition_data": partitions}


def _fetched(name: str) -> dict[str, Any]:
    partition = {"partition": 0, "current_leader_epoch": -1, "partition_max_bytes": 1_000_000}
    return {"topic": name, "topic_id": f"id:{name}", "partitions": [partition]}


def _committed(name: str) -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1}
    return {"name": name, "topic_id": f"id:{name}", "partitions": [partition]}


def _offsets_of(name: str) -> dict[str, Any]:
    return {"name": name, "topic_id": f"id:{name}", "partition_indexes": [0]}


def _listed(name: str) -> dict[str, Any]:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
    return {"name": name, "partitions": [partition]}


def _each(key: str, values: Sequence[Any], **fields: Any) -> list[dict[str, Any]]:
    return [{key: value, **fields} for value in values]


def _alone(key: str, items: Sequence[Any], **fields: Any) -> list[dict[str, Any]]:
    """A request for each item: items without a name differ only in their order."""
    return [{key: [item], **fields} for item in items]


_KEYS = {
    TOPIC: "retention.ms",
    BROKER: "max.connections",
    GROUP: "consumer.session.timeout.ms",
}


def _configs(**config: int) -> list[dict[str, Any]]:
    return [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": _KEYS[kind], "value": "50000", **config}],
        }
        for kind, name in _RESOURCES
    ]


_CREATED = [
    {"name": name, "num_partitions": 1, "replication_factor": 1}
    for name in ("known", "kno2", "new", "", "twice", "twice")
]
_TRANSACTION = {"producer_id": 5, "producer_epoch": 0}

REQUESTS: Mapping[ApiKey, Sequence[Mapping[str, Any]]] = {
    ApiKey.API_VERSIONS: [{"client_software_name": "a", "client_software_version": "1"}],
    ApiKey.PRODUCE: [
        *_alone("topic_data", [produced(name) for name in _NAMES[:3]], acks=1, timeout=5000),
    ],
    ApiKey.FETCH: [
        *_alone("topics", [_fetched(name) for name in _NAMES[:3]], **_FETCH),
        {**_FETCH, "topics": [_fetched("known")], "session_epoch": 0},
        *_alone("topics", [_fetched(name) for name in ("missing", "")], **_FETCH),
        {**_FETCH, "topics": [_fetched("known")], "replica_id": 1},
    ],
    ApiKey.LIST_OFFSETS: [
        {"replica_id": replica, "timeout": 1000, "topics": [_listed(name) for name in names]}
        for replica in (-1, -2)
        for names in ([*_NAMES, ""], ["other"])
    ],
    ApiKey.METADATA: [
        {"topics": [{"name": name} for name in _NAMES]},
        {
            "topics": [{"name": name} for name in _NAMES],
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        },
        {},
        {"topics": [{"topic_id": f"id:{name}"} for name in _NAMES]},
        {"topics": [{"topic_id": "id:known"}], "include_topic_authorized_operations": True},
    ],
    ApiKey.OFFSET_COMMIT: [
        {"group_id": group, "generation_id_or_member_epoch": -1, "topics": [_committed(name)]}
        for group in ("g", "h")
        for name in ("known", "other")
    ],
    ApiKey.OFFSET_FETCH: [
        *_each("group_id", _GROUPS, topics=[_offsets_of("known")]),
        *_each("group_id", _GROUPS, topics=[_offsets_of("other")]),
        {"groups": [{"group_id": g, "topics": [_offsets_of("known")]} for g in _GROUPS]},
        {"groups": [{"group_id": g} for g in _GROUPS]},
    ],
    ApiKey.FIND_COORDINATOR: [
        *_each("key", _GROUPS, key_type=0, coordinator_keys=list(_GROUPS)),
        *_each("key", _IDS, key_type=1, coordinator_keys=list(_IDS)),
        {"key": "g:x:0", "key_type": 2, "coordinator_keys": ["g:x:0"]},
    ],
    ApiKey.JOIN_GROUP: _each("group_id", _GROUPS, session_timeout=1, protocol_type="consumer"),
    ApiKey.HEARTBEAT: _each("group_id", _GROUPS, member_id="m"),
    ApiKey.LEAVE_GROUP: _each("group_id", _GROUPS, member_id="m", members=[{"member_id": "m"}]),
    ApiKey.SYNC_GROUP: [
        *_each("group_id", _GROUPS, member_id="m"),
        *_each("group_id", _GROUPS, member_id="m", protocol_type="c", protocol_name="range"),
    ],
    ApiKey.DESCRIBE_GROUPS: [
        {"groups": list(_GROUPS)},
        {"groups": list(_GROUPS), "include_authorized_operations": True},
    ],
    ApiKey.LIST_GROUPS: [{}, {"types_filter": ["consumer"]}, {"states_filter": ["Stable"]}],
    ApiKey.CREATE_TOPICS: [{"topics": _CREATED, "timeout": 5000, "validate_only": True}],
    ApiKey.DELETE_RECORDS: [
        {
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}
                for name in (*_NAMES, "")
            ],
            "timeout": 5000,
        }
    ],
    ApiKey.INIT_PRODUCER_ID: [
        *_each("transactional_id", _IDS, transaction_timeout=0, producer_id=-1, producer_epoch=-1),
        {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
    ],
    ApiKey.OFFSET_FOR_LEADER_EPOCH: [
        {
            "replica_id": -2,
            "topics": [
                {"topic": name, "partitions": [{"partition": 0, "current_leader_epoch": -1}]}
                for name in _NAMES
            ],
        }
    ],
    ApiKey.ADD_PARTITIONS_TO_TXN: [
        {
            "v3_and_below_transactional_id": transactional_id,
            "v3_and_below_producer_id": 5,
            "v3_and_below_topics": [
                {"name": name, "partitions": [0, 9]} for name in ("known", "other")
            ],
            "transactions": [
                {
                    "transactional_id": transactional_id,
                    "producer_id": 5,
                    "topics": [{"name": "known", "partitions": [0]}],
                }
            ],
        }
        for transactional_id in _IDS
    ],
    ApiKey.ADD_OFFSETS_TO_TXN: [
        {"transactional_id": transactional_id, "group_id": group, **_TRANSACTION}
        for transactional_id in _IDS
        for group in ("g", "h")
    ],
    ApiKey.END_TXN: _each("transactional_id", _IDS, **_TRANSACTION),
    ApiKey.WRITE_TXN_MARKERS: [
        {
            "markers": [
                {
                    "producer_id": 5,
                    "topics": [{"name": "missing", "partition_indexes": [0]}],
                }
            ]
        }
    ],
    # Without a group nothing is done, on any broker.
    **{
        key: [{"group_id": "", "topics": [{"topic_id": "id:known", "partitions": [{}]}]}]
        for key in (
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            ApiKey.READ_SHARE_GROUP_STATE,
            ApiKey.WRITE_SHARE_GROUP_STATE,
            ApiKey.DELETE_SHARE_GROUP_STATE,
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        )
    },
    ApiKey.TXN_OFFSET_COMMIT: [
        {
            "transactional_id": transactional_id,
            "group_id": group,
            "generation_id": -1,
            "topics": [_committed(name) for name in ("known", "other")],
            **_TRANSACTION,
        }
        for transactional_id in ("t", "u")
        for group in ("g", "h")
    ],
    ApiKey.DESCRIBE_ACLS: [_ANY_ACL],
    ApiKey.CREATE_ACLS: [
        {
            "creations": [
                {
                    "resource_type": 4,
                    "resource_name": "no-such-cluster",
                    "resource_pattern_type": 3,
                    "principal": "User:a",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                },
                {
                    "resource_type": 2,
                    "resource_name": "",
                    "resource_pattern_type": 3,
                    "principal": "User:a",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                },
                {
                    "resource_type": 2,
                    "resource_name": "a",
                    "resource_pattern_type": 3,
                    "principal": "a",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                },
            ]
        },
        {"creations": [{"resource_type": 77, "principal": "User:a", "host": "*"}]},
    ],
    ApiKey.DELETE_ACLS: [{"filters": [_ANY_ACL]}],
    ApiKey.DESCRIBE_CONFIGS: [
        {
            "resources": [
                {"resource_type": kind, "resource_name": name, "configuration_keys": ["none"]}
                for kind, name in _RESOURCES
            ]
        }
    ],
    ApiKey.ALTER_CONFIGS: [{"resources": _configs(), "validate_only": True}],
    ApiKey.INCREMENTAL_ALTER_CONFIGS: [
        {"resources": _configs(config_operation=0), "validate_only": True}
    ],
    ApiKey.ALTER_REPLICA_LOG_DIRS: [
        {"dirs": [{"path": "/nowhere", "topics": [{"name": "missing", "partitions": [0]}]}]}
    ],
    ApiKey.DESCRIBE_LOG_DIRS: [
        {"topics": [{"topic": name, "partitions": [0]} for name in ("known", "missing")]}
    ],
    ApiKey.CREATE_PARTITIONS: [
        {
            "topics": [{"name": name, "count": 3} for name in (*_NAMES, "", "twice", "twice")],
            "timeout": 5000,
            "validate_only": True,
        }
    ],
    ApiKey.ELECT_LEADERS: [
        {"topic_partitions": [{"topic": "known", "partitions": [0]}], "timeout": 5000}
    ],
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: [
        {
            "topics": [
                {"name": "missing", "partitions": [{"partition_index": 0, "replicas": [1]}]}
            ],
            "timeout": 5000,
        }
    ],
    ApiKey.LIST_PARTITION_REASSIGNMENTS: [{"timeout": 5000}],
    ApiKey.DESCRIBE_CLIENT_QUOTAS: [{}],
    ApiKey.ALTER_CLIENT_QUOTAS: [
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "u"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0}],
                }
            ],
            "validate_only": True,
        }
    ],
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: [{"users": [{"name": "nobody"}]}],
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: [{"deletions": [{"name": "nobody", "mechanism": 1}]}],
    ApiKey.DESCRIBE_QUORUM: [
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
    ],
    ApiKey.UPDATE_FEATURES: [
        {
            "feature_updates": [{"feature": "no.such", "max_version_level": 1, "upgrade_type": 1}],
            "timeout": 5000,
            "validate_only": True,
        }
    ],
    ApiKey.DESCRIBE_CLUSTER: [
        {"endpoint_type": 1},
        {"endpoint_type": 1, "include_cluster_authorized_operations": True},
    ],
    ApiKey.DESCRIBE_PRODUCERS: [
        {"topics": [{"name": name, "partition_indexes": [0]} for name in (*_NAMES, "a b")]}
    ],
    ApiKey.UNREGISTER_BROKER: [{"broker_id": 77}],
    ApiKey.DESCRIBE_TRANSACTIONS: [{"transactional_ids": list(_IDS)}],
    ApiKey.LIST_TRANSACTIONS: [
        {"duration_filter": -1},
        {"duration_filter": -1, "transactional_id_pattern": "t.*"},
    ],
    ApiKey.CONSUMER_GROUP_HEARTBEAT: [
        {
            "group_id": group,
            "member_id": "m",
            "member_epoch": 5,
            "rebalance_timeout": -1,
            "subscribed_topic_names": names,
        }
        for group in ("g", "h")
        for names in (None, ["known"], ["known", "other"])
    ],
    ApiKey.CONSUMER_GROUP_DESCRIBE: [
        {"group_ids": list(_GROUPS), "include_authorized_operations": True}
    ],
    ApiKey.SHARE_GROUP_HEARTBEAT: [
        {
            "group_id": group,
            "member_id": "m",
            "member_epoch": 5,
            "subscribed_topic_names": names,
        }
        for group in ("g", "h")
        for names in (None, ["known"], ["known", "other"])
    ],
    ApiKey.SHARE_GROUP_DESCRIBE: [
        {"group_ids": list(_GROUPS), "include_authorized_operations": True}
    ],
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: [
        {"groups": [{"group_id": group, "topics": topics} for group in _GROUPS]}
        for topics in (
            None,
            [{"topic_name": name, "partitions": [0, 1]} for name in ("known", "other", "missing")],
        )
    ],
    ApiKey.LIST_CONFIG_RESOURCES: [{}],
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: [
        {"topics": [{"name": name} for name in _NAMES], "response_partition_limit": 100},
        {"response_partition_limit": 100},
        {"topics": [{"name": name} for name in _NAMES], "response_partition_limit": 1},
        {
            "topics": [{"name": name} for name in _NAMES],
            "response_partition_limit": 2,
            "cursor": {"topic_name": "known", "partition_index": 1},
        },
    ],
    ApiKey.OFFSET_DELETE: [
        {
            "group_id": group,
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0}]}
                for name in ("known", "other", "missing")
            ],
        }
        for group in _GROUPS
    ],
    # One topic each, since the order of the answers differs.
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: [
        {
            "group_id": group,
            "topics": [
                {"topic_name": name, "partitions": [{"partition_index": 0, "start_offset": 0}]}
            ],
        }
        for group in ("g", "group", "gc")
        for name in ("known", "other", "missing")
    ],
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: [
        {"group_id": group, "topics": [{"topic_name": name}]}
        for group in _GROUPS
        for name in ("known", "other", "missing")
    ],
    ApiKey.DELETE_GROUPS: [{"groups_names": list(_GROUPS)}],
    ApiKey.DELETE_TOPICS: [
        {
            "topic_names": ["other", "missing"],
            "topics": [{"name": "other"}, {"name": "missing"}],
            "timeout": 5000,
        },
        {"topics": [{"topic_id": "id:missing"}, {"name": "known"}], "timeout": 5000},
        {"topic_names": ["knot"], "topics": [{"topic_id": "id:knot"}], "timeout": 5000},
        {"topic_names": ["known"], "topics": [{"name": "known"}], "timeout": 5000},
    ],
}

# Answered alike under all ACLs; tests of refused APIs compare the answers.
NOT_ASKED = frozenset(
    {
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.SASL_HANDSHAKE,
        *(key for key in ApiKey if "DELEGATION_TOKEN" in key.name),
        # Each answer depends on the one before: test_share_consumers_get_what_they_may_read.
        ApiKey.SHARE_ACKNOWLEDGE,
        ApiKey.SHARE_FETCH,
        *(key for key in ApiKey if key.name.startswith("STREAMS_")),
    }
)


def fitting(
    api: ApiKey, version: int, fields: Mapping[str, Any], topic_ids: Mapping[str, str]
) -> dict[str, Any] | None:
    """The fields that the version has; None if it lacks a field that the request is about."""
    fitted = _fitting(request_class(api, version), fields, topic_ids)
    lists = [key for key, value in fields.items() if isinstance(value, list)]
    return fitted if not lists or any(key in fitted for key in lists) else None


def _fitting(entity_type: Any, fields: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    annotations = annotations_of(entity_type)
    return {
        key: _fitting_value(annotations[key], value, ids)
        for key, value in fields.items()
        if key in annotations
    }


def _fitting_value(annotation: Any, value: Any, ids: Mapping[str, str]) -> Any:
    origin, arms = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return _fitting_value(next(arm for arm in arms if arm is not types.NoneType), value, ids)
    if isinstance(value, list):
        return [_fitting_value(arms[0], each, ids) for each in value]
    if dataclasses.is_dataclass(annotation) and isinstance(value, Mapping):
        return _fitting(annotation, value, ids)
    if isinstance(value, str) and value.startswith("id:"):
        return ids.get(value.removeprefix("id:"), "00000000-0000-0000-0000-00000000004d")
    return value
