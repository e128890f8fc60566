"""A request that fails as a whole gets an error for each thing that it names, in every version."""

from __future__ import annotations

import datetime

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import SERVED
from isotherm.protocol.api_keys import ApiKey

SECOND = datetime.timedelta(seconds=1)
RESOURCE = {"resource_type": 2, "resource_name": "t", "configs": []}
ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "principal": "User:u",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ACL_FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": "t",
    "principal_filter": None,
    "host_filter": None,
    "operation": 3,
    "permission_type": 3,
}
REQUESTS = {
    ApiKey.DELETE_RECORDS: {
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}],
        "timeout": SECOND,
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {
        "topics": [
            {
                "topic": "t",
                "partitions": [{"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}],
            }
        ]
    },
    ApiKey.DESCRIBE_ACLS: {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    },
    ApiKey.CREATE_ACLS: {"creations": [ACL]},
    ApiKey.DELETE_ACLS: {"filters": [ACL_FILTER]},
    ApiKey.ALTER_CONFIGS: {"resources": [RESOURCE], "validate_only": False},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {"resources": [RESOURCE], "validate_only": False},
    ApiKey.CREATE_PARTITIONS: {
        "topics": [{"name": "t", "count": 2, "assignments": None}],
        "timeout": SECOND,
        "validate_only": False,
    },
    ApiKey.ELECT_LEADERS: {
        "election_type": 0,
        "topic_partitions": [{"topic": "t", "partitions": [0]}],
        "timeout": SECOND,
    },
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {"components": [], "strict": False},
    ApiKey.ALTER_CLIENT_QUOTAS: {
        "entries": [{"entity": [{"entity_type": "user", "entity_name": None}], "ops": []}],
        "validate_only": False,
    },
    ApiKey.UPDATE_FEATURES: {"feature_updates": [], "timeout": SECOND},
    ApiKey.DESCRIBE_CLUSTER: {
        "include_cluster_authorized_operations": False,
        "include_fenced_brokers": False,
    },
    ApiKey.DESCRIBE_LOG_DIRS: {"topics": None},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"topics": None, "timeout": SECOND},
    ApiKey.LIST_CONFIG_RESOURCES: {},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": [{"name": "t"}], "response_partition_limit": 1},
}


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(key, version) for key in REQUESTS for version in range(SERVED[key].min, SERVED[key].max + 1)],
)
def test_failed_request_is_answered_with_its_code(broker, api_key, version):
    answer = broker.error_response(
        api_key, version, ErrorCode.kafka_storage_error, **REQUESTS[api_key]
    )
    # Before version 3 DescribeLogDirs has no error code of its own; ElectLeaders 0 has one per
    # partition only.
    if (api_key, version) not in ((ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)):
        assert "kafka_storage_error" in repr(answer)
