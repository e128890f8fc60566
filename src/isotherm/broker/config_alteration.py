"""Changing the configuration of what a request names: a topic, this broker, or all brokers.

Source: Kafka ConfigAdminManager and ConfigurationControlManager, whose error codes these are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from isotherm.broker.config_resources import ResourceType
from isotherm.broker.controller.config_changes import ConfigChange
from isotherm.broker.controller.controller import Controller
from isotherm.broker.controller.topic_rules import check_topic_name
from isotherm.errors import InvalidRequestError, RejectedError


class AlteredResource(NamedTuple):
    """The answer for one resource of a request: `error` is None when it was changed."""

    resource_type: int
    name: str
    error: RejectedError | None


# From what is set now to what is to be changed; raises RejectedError.
Changes: TypeAlias = Callable[[Mapping[str, str]], list[ConfigChange]]


def alter_configs(
    controller: Controller,
    asked: Iterable[tuple[int, str, Changes]],
    *,
    validate_only: bool,
) -> list[AlteredResource]:
    """Change every resource (type, name, changes) that may be; on the control thread.

    Each resource is changed as a whole or not at all. One that is named twice is not changed.
    """
    resources = list(asked)
    counts = Counter((kind, name) for kind, name, _ in resources)
    answers = []
    for kind, name, changes in resources:
        error = None
        try:
            if counts[kind, name] > 1:
                raise InvalidRequestError(
                    f"a resource is named twice resource_type={kind} name={name}"
                )
            _alter(controller, kind, name, changes, validate_only=validate_only)
        except RejectedError as raised:
            error = raised
        answers.append(AlteredResource(kind, name, error))
    return answers


def _alter(
    controller: Controller, kind: int, name: str, changes: Changes, *, validate_only: bool
) -> None:
    if kind == ResourceType.TOPIC:
        check_topic_name(name)
        asked = changes(controller.topic_texts(name))
        _check_names(asked)
        controller.alter_topic_config(name, asked, validate_only=validate_only)
    elif kind == ResourceType.BROKER:
        asked = changes(controller.broker_texts(name))
        _check_names(asked)
        controller.alter_broker_config(name, asked, validate_only=validate_only)
    else:
        raise InvalidRequestError(
            f"resources of this type are not changed here resource_type={kind} name={name}"
        )


def _check_names(changes: list[ConfigChange]) -> None:
    if any(not change.name for change in changes):
        raise InvalidRequestError("a setting has an empty name")
