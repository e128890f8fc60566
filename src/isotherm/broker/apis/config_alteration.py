"""Alters the configuration of topics, brokers, groups, client metrics subscriptions and loggers.

Errors have the codes of Kafka's ConfigAdminManager and ConfigurationControlManager.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.configs.broker_loggers import alter_loggers
from isotherm.broker.metadata.configs.config_resources import ResourceType, check_this_broker
from isotherm.broker.metadata.controller.config_changes import ConfigChange, ConfigOperation
from isotherm.broker.metadata.controller.topic_rules import check_topic_name
from isotherm.broker.metadata.image import ConfigResource
from isotherm.broker.server.requests.context import BrokerServices, RequestContext
from isotherm.errors import InvalidRequestError, PolicyViolationError, RejectedError
from isotherm.types import REMOTE_LOG_METADATA_TOPICS

_POLICY = "cleanup.policy"


class AlteredResource(NamedTuple):
    """The result for one resource of a request. `error` is None if the resource was altered."""

    resource_type: int
    name: str
    error: RejectedError | None


# The changes of a resource, computed from its present settings. Raises RejectedError.
Changes: TypeAlias = Callable[[Mapping[str, str]], list[ConfigChange]]


async def answer_alteration(
    context: RequestContext,
    request: Any,
    changes_of: Callable[[Any, Mapping[str, str]], list[ConfigChange]],
) -> dict[str, Any]:
    """The response fields of an AlterConfigs or IncrementalAlterConfigs request.

    `changes_of(resource, settings)` returns the changes to one resource of the request with these
    present settings.
    """
    alterations = [
        (resource.resource_type, resource.resource_name, partial(changes_of, resource))
        for resource in request.resources
    ]
    services = context.services
    altered = await services.run_control(
        lambda: _alter_all(services, alterations, validate_only=request.validate_only)
    )
    return _response_fields(
        (
            altered_resource.resource_type,
            altered_resource.name,
            code_of(altered_resource.error),
            str(altered_resource.error),
        )
        if altered_resource.error
        else (altered_resource.resource_type, altered_resource.name, ErrorCode.none, None)
        for altered_resource in altered
    )


def refused_resources(
    context: RequestContext, refused: Iterable[tuple[Any, RejectedError]]
) -> tuple[Any, ...]:
    """The response entries of resources that are refused before any alteration."""
    fields = _response_fields(
        (resource.resource_type, resource.resource_name, code_of(error), str(error))
        for resource, error in refused
    )
    return tuple(context.response(fields).responses)


def _response_fields(
    answers: Iterable[tuple[int, str, ErrorCode, str | None]],
) -> dict[str, Any]:
    return {
        "throttle_time": datetime.timedelta(),
        "responses": [
            {
                "error_code": error_code,
                "error_message": message,
                "resource_type": resource_type,
                "resource_name": name,
            }
            for resource_type, name, error_code, message in answers
        ],
    }


def _alter_all(
    services: BrokerServices,
    alterations: Iterable[tuple[int, str, Changes]],
    *,
    validate_only: bool,
) -> list[AlteredResource]:
    """Alter each resource (type, name, changes) that may be altered. Control thread only.

    The changes to a resource are all applied or none. A resource that the request names twice is
    rejected.
    """
    resources = list(alterations)
    counts = Counter((kind, name) for kind, name, _ in resources)
    answers = []
    for kind, name, changes in resources:
        error = None
        try:
            if counts[kind, name] > 1:
                raise InvalidRequestError(
                    f"a resource is named twice resource_type={kind} name={name}"
                )
            _alter(services, kind, name, changes, validate_only=validate_only)
        except RejectedError as raised:
            error = raised
        answers.append(AlteredResource(kind, name, error))
    return answers


def _alter(
    services: BrokerServices, kind: int, name: str, changes: Changes, *, validate_only: bool
) -> None:
    if kind == ResourceType.BROKER_LOGGER:
        check_this_broker(name, services.config.node_id)
        alter_loggers(changes({}), validate_only=validate_only)
        return
    controller = services.controller
    if kind == ResourceType.TOPIC:
        if not name:
            raise InvalidRequestError("topics have no cluster-wide defaults to set")
        check_topic_name(name)
        config_changes = changes(controller.topic_texts(name))
        _check_names(config_changes)
        _check_policy_stays(name, config_changes, controller.topic_texts(name))
        controller.alter_topic_config(name, config_changes, validate_only=validate_only)
    elif kind == ResourceType.BROKER:
        config_changes = changes(controller.broker_texts(name))
        _check_names(config_changes)
        controller.alter_broker_config(name, config_changes, validate_only=validate_only)
    elif kind in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        resource = ConfigResource(kind, name)
        config_changes = changes(controller.texts_of(resource))
        _check_names(config_changes)
        controller.alter_resource_config(resource, config_changes, validate_only=validate_only)
    else:
        raise InvalidRequestError(
            f"resources of this type cannot be altered resource_type={kind} name={name}"
        )


def _check_names(changes: list[ConfigChange]) -> None:
    if any(not change.name for change in changes):
        raise InvalidRequestError("a setting has an empty name")


def _check_policy_stays(
    topic: str, changes: list[ConfigChange], current: Mapping[str, str]
) -> None:
    """Reject changes of cleanup.policy on the remote tier's metadata topics, where it follows the
    feature level.

    If such a topic were compacted too early, or had deletion enabled while it holds states,
    segments would be lost.
    """
    for change in changes:
        is_kept = change.operation is ConfigOperation.SET and change.value == current.get(_POLICY)
        if topic in REMOTE_LOG_METADATA_TOPICS and change.name == _POLICY and not is_kept:
            raise PolicyViolationError(
                f"the setting follows the feature remote.log.metadata.compaction topic={topic}"
                f" key={_POLICY}"
            )
