"""The levels of this process's loggers, under Kafka's level names (KIP-412).

Changes last until the process ends. Python has no TRACE level, so TRACE sets DEBUG. Thread-safe.
Source: Kafka ConfigAdminManager.validateLogLevelConfigs, LoggingController.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from isotherm.broker.metadata.controller.config_changes import ConfigChange, ConfigOperation
from isotherm.errors import ConfigError, InvalidRequestError

ROOT = "root"
PACKAGE = "isotherm"

LEVELS: Mapping[str, int] = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": logging.DEBUG,
    "WARN": logging.WARNING,
}
_NAMES = {level: name for name, level in LEVELS.items() if name != "TRACE"}


def logger_levels() -> dict[str, str]:
    """The effective level of the root logger and of every logger of Isotherm."""
    return {name: _name_of(_logger(name).getEffectiveLevel()) for name in _logger_names()}


def alter_loggers(changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
    """Set levels, or reset loggers to their parent's level. All changes or none are applied.

    Raises ConfigError or InvalidRequestError with Kafka's messages.
    """
    logger_names = _logger_names()
    # All are checked before the first is applied, so that an error leaves every level as it was.
    for change in changes:
        _check(change, logger_names)
    if validate_only:
        return
    for change in changes:
        is_set = change.operation is ConfigOperation.SET
        level = LEVELS[change.value or ""] if is_set else logging.NOTSET
        _logger(change.name).setLevel(level)


def _check(change: ConfigChange, logger_names: Sequence[str]) -> None:
    if change.operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        raise InvalidRequestError(
            f"{change.operation.name} operation is not allowed for the BROKER_LOGGER resource"
        )
    if change.name not in logger_names:
        raise ConfigError(f"Logger {change.name} does not exist!")
    if change.operation is ConfigOperation.SET and change.value not in LEVELS:
        raise ConfigError(
            f"Cannot set the log level of {change.name} to {change.value} as it is not a supported"
            f" log level. Valid log levels are {', '.join(sorted(LEVELS))}"
        )
    if change.operation is ConfigOperation.DELETE and change.name == ROOT:
        raise InvalidRequestError("Removing the log level of the root logger is not allowed")


def _logger_names() -> list[str]:
    existing = sorted(logging.root.manager.loggerDict)
    return [ROOT, *(name for name in existing if name.split(".")[0] == PACKAGE)]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _name_of(level: int) -> str:
    """The lowest of Kafka's levels that is not below `level`. Python allows levels in between."""
    return next((name for other, name in sorted(_NAMES.items()) if other >= level), "OFF")
