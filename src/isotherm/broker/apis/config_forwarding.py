"""The part of AlterConfigs and IncrementalAlterConfigs that a member does before it forwards them.

The levels of this process's loggers are set here. Settings of brokers are checked here, because the
controller knows neither the keys that this broker can change while it runs nor their legal values.
So is the form of every resource, which a controller of Apache Kafka leaves to the broker: it takes
a setting without a value for a deletion, and of two settings of one key the last.
The rest is forwarded. Key stores and trust stores that are set again are read again, even if their
paths are the same.
Source: Kafka ConfigAdminManager.preprocess, reassembleIncrementalResponse; DynamicConfigPublisher.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from isotherm.broker.apis.config_alteration import refused_resources
from isotherm.broker.metadata.cluster_metadata import ALL_BROKERS, ClusterMetadata
from isotherm.broker.metadata.configs.config_resources import ResourceType, check_this_broker
from isotherm.broker.metadata.controller.config_changes import (
    ConfigChange,
    ConfigOperation,
    broker_list_in_effect,
    changed_texts,
    check_are_dynamic,
)
from isotherm.broker.server.dispatch.forwarding import Forward
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Handler
from isotherm.config.dynamic import (
    check_connection_limits,
    check_for_all,
    check_thread_pools,
    dynamic_broker_keys,
)
from isotherm.config.listener_tls import check_key_material
from isotherm.config.security import split_key_material
from isotherm.errors import ConfigError, InvalidRequestError, RejectedError

ChangesOf = Callable[[Any, Mapping[str, str]], list[ConfigChange]]


def checked_forwarding(local: Handler, changes_of: ChangesOf, forward: Forward) -> Forward:
    """Wrap `forward` with the local part.

    `local` alters the loggers. `changes_of` returns the changes of one resource of the request,
    given its current settings.
    """

    there_and_renewed = _renewing(forward)

    async def handle(context: RequestContext, request: Any) -> Any:
        here: list[Any] = []
        there: list[Any] = []
        refused: list[tuple[Any, RejectedError]] = []
        counts = Counter(_key(resource) for resource in request.resources)
        for resource in request.resources:
            try:
                _check_form(resource, counts[_key(resource)])
                if resource.resource_type == ResourceType.BROKER:
                    _check(context, resource, changes_of)
            except RejectedError as error:
                refused.append((resource, error))
                continue
            is_local = resource.resource_type == ResourceType.BROKER_LOGGER
            (here if is_local else there).append(resource)
        answers = [*refused_resources(context, refused)]
        for resources, handler in ((here, local), (there, there_and_renewed)):
            if resources:
                part = dataclasses.replace(request, resources=tuple(resources))
                response = await handler(context, part)
                if len(resources) == len(request.resources):
                    return response
                answers += response.responses
        return dataclasses.replace(context.response({"responses": ()}), responses=tuple(answers))

    return handle


def _renewing(forward: Forward) -> Forward:
    async def handle(context: RequestContext, request: Any) -> Any:
        response = await forward(context, request)
        if _sets_key_material(request) and not request.validate_only:
            # If the paths are the same, the metadata does not change and its listeners are not
            # called.
            services = context.services
            await services.run_control(services.metadata.announce_keys_again)
        return response

    return handle


def _sets_key_material(request: Any) -> bool:
    return any(
        resource.resource_type == ResourceType.BROKER and split_key_material(config.name)
        for resource in request.resources
        for config in resource.configs
    )


def _key(resource: Any) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _check_form(resource: Any, count: int) -> None:
    """Raise InvalidRequestError, with Kafka's message, for a resource that no state allows. `count`
    says how often the request names it."""
    if count > 1:
        raise InvalidRequestError("Each resource must appear at most once.")
    if len({config.name for config in resource.configs}) != len(resource.configs):
        raise InvalidRequestError("Error due to duplicate config keys")
    without_value = [
        config.name
        for config in resource.configs
        # AlterConfigs has no operations.
        if config.value is None
        and getattr(config, "config_operation", ConfigOperation.SET) != ConfigOperation.DELETE
    ]
    if without_value:
        raise InvalidRequestError(f"Null value not supported for : {', '.join(without_value)}")


def _check(context: RequestContext, resource: Any, changes_of: ChangesOf) -> None:
    services, broker = context.services, resource.resource_name
    if broker != ALL_BROKERS:
        check_this_broker(broker, services.config.node_id)
    current = services.metadata.broker_texts(broker)
    check_broker_changes(services.metadata, broker, changes_of(resource, current))


def check_broker_changes(
    metadata: ClusterMetadata, broker: str, changes: list[ConfigChange]
) -> None:
    """Raise InvalidRequestError for a key that takes effect only at a start, and for an illegal
    value.

    A key that this broker does not know is accepted: it may belong to brokers of another kind.
    """
    check_are_dynamic(changes)
    config, current = metadata.broker_config, metadata.broker_texts(broker)
    try:
        changed = changed_texts(current, changes, lambda name: broker_list_in_effect(name, config))
        texts = {
            name: text
            for name, text in changed.items()
            if text is not None and name in dynamic_broker_keys()
        }
        check_connection_limits(texts)
        for_all, for_this = config.dynamic_for_all, config.dynamic_for_this
        if broker == ALL_BROKERS:
            check_for_all(texts)
            for_all = _after(for_all, changed)
        else:
            for_this = _after(for_this, changed)
        after = metadata.config_with(for_all=for_all, for_this=for_this)
        check_thread_pools(config, after)
        after.check_zeros()
        check_key_material(config, after)
    except ConfigError as error:
        raise InvalidRequestError(str(error)) from error


def _after(texts: Mapping[str, str], changed: Mapping[str, str | None]) -> dict[str, str]:
    return {name: text for name, text in {**texts, **changed}.items() if text is not None}
