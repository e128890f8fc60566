"""The ACLs of a read replica: a file, or those of the cluster in front of which it stands.

A line of the file is an ACL in JSON, with the names of Kafka's AclBinding:

    {"resourceType": "TOPIC", "name": "sales", "patternType": "LITERAL",
     "principal": "User:ann", "host": "*", "operation": "READ", "permissionType": "ALLOW"}

`patternType` is LITERAL, `host` is `*` and `permissionType` is ALLOW if they are left out.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation, PatternType, Permission, ResourceType
from isotherm.broker.metadata.access.principal import parse_principal
from isotherm.broker.metadata.metadata_records import AccessControlEntryRecord
from isotherm.client.cluster_client import ClusterClient
from isotherm.errors import ConfigError, RejectedError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name

Acls = Mapping[uuid.UUID, AccessControlEntryRecord]

_NAMESPACE = uuid.UUID("6f0c3d0e-0b0e-5b4e-9a55-6f6c3a2f6f1d")
_KEYS = frozenset(
    {"resourceType", "name", "patternType", "principal", "host", "operation", "permissionType"}
)
_Code = TypeVar("_Code", ResourceType, PatternType, Operation, Permission)


def read_acl_file(path: Path) -> Acls:
    """Raises ConfigError, which names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of ACLs cannot be read path={path} reason='{error}'") from None
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(_acl_of(json.loads(line)))
        except (ValueError, KeyError, TypeError, ConfigError) as error:
            raise ConfigError(f"not an ACL path={path} line={number} reason='{error}'") from None
    return _by_id(records)


def read_upstream_acls(client: ClusterClient) -> Acls:
    """The cluster's ACLs. Raises RejectedError if it does not show them: the replica's principal
    needs DESCRIBE on the cluster."""
    answer = client.ask_any(
        ApiKey.DESCRIBE_ACLS,
        {
            "resource_type_filter": ResourceType.ANY,
            "resource_name_filter": None,
            "pattern_type_filter": PatternType.ANY,
            "principal_filter": None,
            "host_filter": None,
            "operation": Operation.ANY,
            "permission_type": Permission.ANY,
        },
        newest=3,
        oldest=1,
    )
    if answer.error_code is not ErrorCode.none:
        raise RejectedError(
            "the cluster does not show its ACLs"
            f" reason={code_name(answer.error_code)} message={answer.error_message or ''!r}"
            " hint='the principal of --command-config needs Describe on the cluster'"
        )
    return _by_id(
        AccessControlEntryRecord(
            id=None,
            resource_type=int(resource.resource_type),
            resource_name=str(resource.resource_name),
            pattern_type=int(resource.pattern_type),
            principal=str(acl.principal),
            host=str(acl.host),
            operation=int(acl.operation),
            permission_type=int(acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    )


def _acl_of(fields: Mapping[str, Any]) -> AccessControlEntryRecord:
    unknown = fields.keys() - _KEYS
    if unknown:
        raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
    return AccessControlEntryRecord(
        id=None,
        resource_type=_code(ResourceType, fields["resourceType"]),
        resource_name=str(fields["name"]),
        pattern_type=_code(PatternType, fields.get("patternType", "LITERAL")),
        principal=str(parse_principal(str(fields["principal"]))),
        host=str(fields.get("host", "*")),
        operation=_code(Operation, fields["operation"]),
        permission_type=_code(Permission, fields.get("permissionType", "ALLOW")),
    )


def _code(kind: type[_Code], name: object) -> int:
    """The number of a name. UNKNOWN, ANY and MATCH are no part of an ACL."""
    codes = {e.name: int(e) for e in kind if e.name not in ("UNKNOWN", "ANY", "MATCH")}
    code = codes.get(str(name).upper())
    if code is None:
        raise ValueError(f"{name} is none of {', '.join(codes)}")
    return code


def _by_id(records: Iterable[AccessControlEntryRecord]) -> Acls:
    """Equal ACLs have the same id at each look, so that nothing changes for the authorizer."""
    return {uuid.uuid5(_NAMESPACE, repr(record)): record for record in records}
