"""Client quotas: entities, legal changes and filters. Pure.

An entity is a set of (type, name) pairs: a user, a client id, both, or an address. The name None is
the default entity: it stands for every user, client id or address without a quota. Source: KIP-546;
Kafka ClientQuotaControlManager, ClientQuotasImage.describe.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from isotherm.broker.metadata.metadata_records import ClientQuotaEntity, ClientQuotaRecord
from isotherm.errors import InvalidRequestError, UnsupportedVersionError

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = frozenset({USER, CLIENT_ID, IP})

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

QuotaEntity: TypeAlias = frozenset[tuple[str, str | None]]
ClientQuotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]


class _Key(NamedTuple):
    is_whole: bool
    value_max: float = float("inf")


_CLIENT_KEYS = {
    PRODUCER_BYTE_RATE: _Key(is_whole=True, value_max=2**63 - 1),
    CONSUMER_BYTE_RATE: _Key(is_whole=True, value_max=2**63 - 1),
    REQUEST_PERCENTAGE: _Key(is_whole=False),
    CONTROLLER_MUTATION_RATE: _Key(is_whole=False),
}
_ADDRESS_KEYS = {CONNECTION_CREATION_RATE: _Key(is_whole=True, value_max=2**31 - 1)}


class QuotaChange(NamedTuple):
    """A change to one quota of an entity. A `value` of None removes the quota."""

    key: str
    value: float | None


def quota_entity(parts: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """The entity of `parts`. Raises InvalidRequestError unless it can have quotas."""
    kinds = [kind for kind, _ in parts]
    if not parts or len(set(kinds)) != len(kinds):
        raise InvalidRequestError(
            f"an entity must have at least one type, and each type once types={kinds}"
        )
    for kind, name in parts:
        if kind not in ENTITY_TYPES:
            raise InvalidRequestError(f"unknown entity type entity_type={kind}")
        if name == "":
            raise InvalidRequestError(f"an entity's name is empty entity_type={kind}")
    if IP in kinds and len(kinds) > 1:
        raise InvalidRequestError(
            f"an address cannot be combined with other entities types={kinds}"
        )
    return frozenset(parts)


def plan_quota_changes(
    entity: QuotaEntity, changes: Sequence[QuotaChange], current: ClientQuotas
) -> list[ClientQuotaRecord]:
    """The records of the changes that have an effect.

    Raises InvalidRequestError, which names the wrong key.
    """
    if len({change.key for change in changes}) != len(changes):
        raise InvalidRequestError("one quota is changed twice in one request")
    keys = _ADDRESS_KEYS if any(kind == IP for kind, _ in entity) else _CLIENT_KEYS
    for change in changes:
        _check(change, keys)
    now = current.get(entity, {})
    parts = tuple(
        ClientQuotaEntity(entity_type=kind, entity_name=name)
        for kind, name in sorted(entity, key=lambda part: part[0])
    )
    return [
        ClientQuotaRecord(
            entity=parts,
            key=change.key,
            value=0.0 if change.value is None else change.value,
            remove=change.value is None,
        )
        for change in changes
        if now.get(change.key) != change.value
    ]


def _check(change: QuotaChange, keys: Mapping[str, _Key]) -> None:
    key = keys.get(change.key)
    if key is None:
        raise InvalidRequestError(f"the entity has no such quota key={change.key}")
    if change.value is None:
        return
    is_legal = 0 < change.value <= key.value_max and (
        not key.is_whole or change.value == int(change.value)
    )
    if not is_legal or change.value == float("inf"):
        raise InvalidRequestError(
            f"a quota must be a number above 0 key={change.key} value={change.value}"
            f" whole={str(key.is_whole).lower()}"
        )


class MatchType(enum.IntEnum):
    EXACT = 0
    DEFAULT = 1
    ANY = 2


class QuotaFilter(NamedTuple):
    """A filter: the type that an entity must have, and the name to match."""

    entity_type: str
    match_type: int
    name: str | None


def matching_quotas(
    quotas: ClientQuotas, filters: Sequence[QuotaFilter], *, strict: bool
) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    """The entities that pass every filter. With `strict`, an entity has no type besides the
    filtered ones.

    Raises InvalidRequestError, or UnsupportedVersionError for an unknown type, as in Kafka.
    """
    kinds = [quota_filter.entity_type for quota_filter in filters]
    if "" in kinds or len(set(kinds)) != len(kinds):
        raise InvalidRequestError(f"an entity type is filtered more than once types={kinds}")
    for quota_filter in filters:
        if quota_filter.entity_type not in ENTITY_TYPES:
            raise UnsupportedVersionError(
                f"unknown entity type entity_type={quota_filter.entity_type}"
            )
        if quota_filter.match_type not in list(MatchType):
            raise InvalidRequestError(f"unknown match type match_type={quota_filter.match_type}")
        if quota_filter.match_type == MatchType.EXACT and quota_filter.name is None:
            raise InvalidRequestError(
                f"an exact match needs a name entity_type={quota_filter.entity_type}"
            )
        if quota_filter.match_type != MatchType.EXACT and quota_filter.name is not None:
            raise InvalidRequestError(
                f"only an exact match has a name entity_type={quota_filter.entity_type}"
                f" name={quota_filter.name}"
            )
    if IP in kinds and len(kinds) > 1:
        raise InvalidRequestError(
            f"an address cannot be combined with other entities types={kinds}"
        )
    return [
        (entity, values)
        for entity, values in quotas.items()
        if (not strict or len(entity) == len(filters))
        and all(_passes(dict(entity), quota_filter) for quota_filter in filters)
    ]


def _passes(entity: Mapping[str, str | None], quota_filter: QuotaFilter) -> bool:
    if quota_filter.entity_type not in entity:
        return False
    name = entity[quota_filter.entity_type]
    if quota_filter.match_type == MatchType.ANY:
        return True
    return name == (quota_filter.name if quota_filter.match_type == MatchType.EXACT else None)
