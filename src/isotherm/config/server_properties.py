"""Parses the texts of a server.properties into a BrokerConfig.

Each group of keys takes its own texts. The remaining keys are ignored with a warning, or refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from isotherm.config.broker import BrokerConfig
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.definition import DISTINCT_LIST, ConfigKey, Synonym, config_keys, nearest_key
from isotherm.config.dynamic import dynamic_broker_keys
from isotherm.config.groups import GroupConfig
from isotherm.config.ignored import REFUSED_KEYS, is_of_older_kafka, reason_to_ignore
from isotherm.config.inert import InertConfig
from isotherm.config.process_roles import COMBINED, has_embedded_controller
from isotherm.config.quorum import QuorumConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.replication import ReplicationConfig
from isotherm.config.security import (
    LISTENER_PREFIX,
    SecurityConfig,
    is_listener_key,
    split_listener,
    split_listener_limit,
)
from isotherm.config.share_coordinator import ShareCoordinatorConfig
from isotherm.config.topic import TopicConfig
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import ConfigError

logger = logging.getLogger(__name__)


def parse_broker_config(texts: Mapping[str, str]) -> BrokerConfig:
    """The configuration that `texts` (key -> value, as in server.properties) describes.

    Keys without an effect are ignored with a warning, which has the reason or names the most
    similar key. Raises ConfigError, which names key and value, for wrong values, and for keys that
    `ignored.py` refuses.
    """
    remaining = dict(texts)
    _check_ids(texts)
    remote = _take_remote(remaining)
    groups = GroupConfig(**_take_fields(GroupConfig, remaining))
    transactions = TransactionConfig(**_take_fields(TransactionConfig, remaining))
    share_coordinator = ShareCoordinatorConfig(**_take_fields(ShareCoordinatorConfig, remaining))
    replication = ReplicationConfig(**_take_fields(ReplicationConfig, remaining))
    cleaner = CleanerConfig(**_take_fields(CleanerConfig, remaining))
    own_roles = DISTINCT_LIST.parse(remaining.get("process.roles", ",".join(COMBINED)))
    if has_embedded_controller(own_roles):
        _warn_of_quorum_keys(remaining)
    quorum = QuorumConfig(**_take_fields(QuorumConfig, remaining))
    security = SecurityConfig(**_take_fields(SecurityConfig, remaining))
    inert = InertConfig(**_take_fields(InertConfig, remaining))
    # From two copies: log.flush.scheduler.interval.ms is a key of the broker and a synonym of
    # flush.ms.
    not_topics, not_own = dict(remaining), dict(remaining)
    topic_defaults = replace(
        TopicConfig(), **_take_fields(TopicConfig, not_topics, synonyms_only=True)
    )
    own = _take_fields(BrokerConfig, not_own)
    for name, text in remaining.items():
        if name not in not_topics or name not in not_own:
            continue
        if split_listener_limit(name) is not None:
            dynamic_broker_keys()[name].declared.parse(text)
        elif not is_listener_key(name):
            _pass_over(name, text)
    config = BrokerConfig(
        **own,
        remote=remote,
        groups=groups,
        transactions=transactions,
        share_coordinator=share_coordinator,
        replication=replication,
        cleaner=cleaner,
        quorum=quorum,
        security=security,
        inert=inert,
        topic_defaults=topic_defaults,
        explicit=dict(texts),
    )
    config.check_zeros()
    _warn_of_other_listeners(config, texts)
    return config


def _check_ids(texts: Mapping[str, str]) -> None:
    if texts.get("node.id", texts.get("broker.id")) != texts.get("broker.id", texts.get("node.id")):
        raise ConfigError("You must set `node.id` to the same value as `broker.id`.")


def _pass_over(name: str, text: str) -> None:
    refusal = REFUSED_KEYS.get(name)
    if refusal is not None and text.strip():
        raise ConfigError(f"{refusal} key={name} value={text}")
    warn_of_passed_over(name)


def warn_of_passed_over(name: str) -> None:
    """Log why a key has no effect, or the key that was perhaps meant."""
    listener, key = split_listener(name)
    dynamic_key = dynamic_broker_keys().get(key)
    reason = REFUSED_KEYS.get(name) or reason_to_ignore(key)
    if dynamic_key is not None and dynamic_key.declared.no_effect is not None:
        reason = dynamic_key.declared.no_effect
    if reason is not None:
        _warn_of_no_effect(name, reason)
        return
    nearest = nearest_key(key, broker_key_names())
    hint = f" nearest={listener}{nearest}" if nearest else ""
    logger.warning("unknown configuration key is ignored key=%s%s", name, hint)


def warn_of_inert_keys(names: Iterable[str]) -> None:
    """Log which of the keys that were set while running change nothing."""
    for name in names:
        dynamic_key = dynamic_broker_keys().get(name)
        if dynamic_key is None or dynamic_key.declared.no_effect is not None:
            warn_of_passed_over(name)


def takes_effect_at_a_start(name: str) -> bool:
    """Whether a key that is not dynamic is known to this broker or to Kafka's, so that a change
    while running is refused. Kafka stores the keys that no broker has."""
    _, key = split_listener(name)
    if key in dynamic_broker_keys() and dynamic_broker_keys()[key].declared.no_effect is not None:
        return False
    is_known = key in REFUSED_KEYS or key in broker_key_names()
    is_of_kafka = reason_to_ignore(key) is not None and not is_of_older_kafka(key)
    return is_known or is_of_kafka or key.startswith(("rsm.config.", "rlmm.config."))


def _warn_of_other_listeners(config: BrokerConfig, texts: Mapping[str, str]) -> None:
    """Settings of a listener that is not there may be misspelled: without them it is open wider
    than meant.
    """
    layout = config.listener_layout
    opened = [listener.name for listener in (*layout.brokers, *layout.controllers)]
    names = {name.lower() for name in (*opened, *config.controller_listener_names)}
    if config.prometheus_listener is not None:
        names.add("prometheus")
    for name in texts:
        listener = split_listener(name)[0].removeprefix(LISTENER_PREFIX).partition(".")[0]
        if listener and listener not in names:
            nearest = nearest_key(listener.lower(), sorted(names))
            hint = f" nearest={LISTENER_PREFIX}{nearest}" if nearest else ""
            logger.warning(
                "configuration key is for an unknown listener key=%s%s listeners=%s",
                name,
                hint,
                ",".join(sorted(names)),
            )


def _warn_of_quorum_keys(texts: Mapping[str, str]) -> None:
    for name, (_, declared) in config_keys(QuorumConfig).items():
        if name in texts and declared.no_effect is None:
            _warn_of_no_effect(name, "broker and controller are one process")


def _warn_of_no_effect(name: str, reason: str) -> None:
    logger.warning("configuration key has no effect key=%s reason=%s", name, reason)


def broker_key_names() -> list[str]:
    """All keys that have an effect in `parse_broker_config`."""
    groups = (
        BrokerConfig,
        RemoteLogManagerConfig,
        GroupConfig,
        TransactionConfig,
        ShareCoordinatorConfig,
        ReplicationConfig,
        CleanerConfig,
        QuorumConfig,
        SecurityConfig,
        InertConfig,
    )  # fmt: skip
    names = [name for group in groups for name in config_keys(group)]
    for config_class in (BrokerConfig, TopicConfig):
        for _, declared in config_keys(config_class).values():
            names += [synonym.name for synonym in declared.synonyms]
    return sorted({*names, "internal.segment.bytes"})


def _take_fields(
    config_class: type, remaining: dict[str, str], *, synonyms_only: bool = False
) -> dict[str, Any]:
    """Parse the keys of one group, and remove them from `remaining`. A key overrides its synonyms,
    and an earlier synonym a later one.

    With `synonyms_only` a key's own name is not taken: segment.bytes is a topic's key, whose
    broker-wide default is set by the synonym log.segment.bytes. Internal keys have no synonym.
    """
    taken: dict[str, Any] = {}
    for field_name, declared in config_keys(config_class).values():
        candidates = list(declared.synonyms)
        if declared.internal or not synonyms_only:
            candidates.insert(0, Synonym(declared.name))
        texts_of_key = [
            (candidate, remaining.pop(candidate.name))
            for candidate in candidates
            if candidate.name in remaining
        ]
        if texts_of_key:
            taken[field_name] = _parse_scaled(declared, *texts_of_key[0])
            if declared.no_effect is not None:
                _warn_of_no_effect(declared.name, declared.no_effect)
    return taken


def _parse_scaled(declared: ConfigKey, synonym: Synonym, text: str) -> Any:
    value = declared.under(synonym).parse(text)
    # A negative value means "no bound" or "as the total" and has no unit.
    return value * synonym.multiplier if synonym.multiplier != 1 and value >= 0 else value


def _take_remote(remaining: dict[str, str]) -> RemoteLogManagerConfig:
    taken = _take_fields(RemoteLogManagerConfig, remaining)
    config = RemoteLogManagerConfig(**taken)
    return replace(
        config,
        rsm_config=_take_prefixed(config.remote_log_storage_manager_impl_prefix, remaining),
        rlmm_config=_take_prefixed(config.remote_log_metadata_manager_impl_prefix, remaining),
    )


def _take_prefixed(prefix: str, remaining: dict[str, str]) -> dict[str, str]:
    names = [name for name in remaining if name.startswith(prefix)]
    return {name.removeprefix(prefix): remaining.pop(name) for name in names}
