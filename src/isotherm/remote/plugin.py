"""Loads the classes that the configuration names, checks them, and contains their errors.

`load_plugin` makes an object of such a class, and refuses one that lacks a method of its interface.
Every call of it goes through `PluginCalls`. An error that the interface does not define becomes a
RemoteStorageError of the requested partition and is logged with its traceback, and so does an
answer of a wrong type or length.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from isotherm.clock import Clock
from isotherm.errors import ConfigError, RemoteStorageError

_logger = logging.getLogger(__name__)

BROKER_ID = "broker.id"
CLUSTER_ID = "cluster.id"
LOG_DIR = "log.dir"
PLACE_KEYS = frozenset({BROKER_ID, CLUSTER_ID, LOG_DIR})
"""The keys that every plug-in gets besides its own."""

CLOSE_TIMEOUT_S = 10.0
"""Longest time that a stop waits for a plug-in's `close`."""

LOG_INTERVAL_S = 10.0
"""Shortest time between two log lines for the same kind of failure of one method. A line has the
number of failures left out since the last one."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PluginKind:
    """A kind of plug-in: its name in messages, its configuration key, its interface, and the
    methods of the interface that it may lack."""

    name: str
    key: str
    interface: type
    optional: frozenset[str] = frozenset()


def place_config(
    config: Mapping[str, str], *, broker_id: int, cluster_id: str, log_dir: str
) -> dict[str, str]:
    """`config` with the PLACE_KEYS of this broker, which override configured values, as in
    Kafka."""
    return {**config, BROKER_ID: str(broker_id), CLUSTER_ID: cluster_id, LOG_DIR: log_dir}


def load_plugin(kind: PluginKind, class_name: str, config: Mapping[str, str]) -> object:
    """Make an object of a Python class with its `from_config(config)`.

    Raises ConfigError, which names the key, the class and the fault: no such class, a method that
    is missing or takes other arguments, or the error of `from_config`.
    """
    module_name, _, name = class_name.rpartition(".")
    try:
        plugin_class = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # noqa: BLE001 - a module may raise anything while it is imported
        _refuse(kind, class_name, "there is no such Python class", error)
    if not callable(getattr(plugin_class, "from_config", None)):
        _refuse(kind, class_name, "a class method is missing methods='from_config(config)'")
    try:
        plugin: object = plugin_class.from_config(config)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the broker does not start with it
        _refuse(kind, class_name, "its from_config failed", error)
    _check_methods(kind, class_name, plugin)
    return plugin


def _check_methods(kind: PluginKind, class_name: str, plugin: object) -> None:
    missing, other = [], []
    for name, declared in inspect.getmembers(kind.interface, inspect.isfunction):
        member = getattr(plugin, name, None)
        if name.startswith("_") or (member is None and name in kind.optional):
            continue
        expected = list(inspect.signature(declared).parameters)[1:]
        method = f"{name}({', '.join(expected)})"
        if not callable(member):
            missing.append(method)
        elif not _takes(member, len(expected)):
            other.append(method)
    if missing:
        _refuse(kind, class_name, f"methods are missing methods={' '.join(missing)!r}")
    if other:
        _refuse(
            kind,
            class_name,
            f"methods take other arguments or are no plain functions expected={' '.join(other)!r}",
        )


def _takes(method: Callable[..., object], count: int) -> bool:
    """Whether the method takes `count` positional arguments and answers synchronously."""
    if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
        return False
    try:
        inspect.signature(method).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _refuse(
    kind: PluginKind, class_name: str, reason: str, error: BaseException | None = None
) -> NoReturn:
    raise ConfigError(
        f"{kind.name} cannot be used: {reason} key={kind.key} value={class_name}{_cause(error)}"
    ) from error


def _cause(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, RemoteStorageError):
        return f" cause={str(error)!r}"
    return f" cause={f'{type(error).__name__}: {error}'!r}"


class PluginCalls:
    """Calls one plug-in. Thread-safe. `expected` are the errors that its interface defines."""

    def __init__(
        self,
        kind: PluginKind,
        plugin: object,
        expected: tuple[type[Exception], ...],
        clock: Clock,
    ) -> None:
        self.class_name = f"{type(plugin).__module__}.{type(plugin).__qualname__}"
        self._kind = kind
        self._expected = expected
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[tuple[str, type], tuple[float, int]] = {}

    def call(self, method: str, place: object, perform: Callable[[], Answer]) -> Answer:
        """Return the answer of `perform`. Raises RemoteStorageError for an unexpected error."""
        try:
            return perform()
        except self._expected:
            raise
        except Exception as error:  # a plug-in may raise anything
            raise self.foreign(method, place, error) from error

    def foreign(self, method: str, place: object, error: BaseException) -> RemoteStorageError:
        """Log an error that the interface does not define; returns the error to raise."""
        failed = RemoteStorageError(
            f"{self._kind.name} failed class={self.class_name} method={method}"
            f" place={place}{_cause(error)}"
        )
        self._log(method, failed, error)
        return failed

    def wrong_answer(self, method: str, place: object, expected: str, answer: object) -> str:
        """Log an answer that breaks the interface; returns the message for the error."""
        text = (
            f"{self._kind.name} returned a wrong value class={self.class_name} method={method}"
            f" place={place} expected={expected!r} found={answer!r}"
        )
        self._log(method, RemoteStorageError(text), None)
        return text

    def check(
        self, method: str, place: object, expected: str, answer: object, *, is_right: bool
    ) -> None:
        """Raise RemoteStorageError unless the answer is right."""
        if not is_right:
            raise RemoteStorageError(self.wrong_answer(method, place, expected, answer))

    def close(self, close: Callable[[], None]) -> None:
        """Call the plug-in's `close`. Waits at most CLOSE_TIMEOUT_S, and raises nothing."""

        def work() -> None:
            try:
                close()
            except Exception:  # the stop goes on
                _logger.exception(
                    "%s is not closed without errors class=%s", self._kind.name, self.class_name
                )

        # A daemon: a `close` that hangs must not keep the process alive.
        thread = threading.Thread(target=work, name="isotherm-plugin-close", daemon=True)
        thread.start()
        thread.join(CLOSE_TIMEOUT_S)
        if thread.is_alive():
            _logger.warning(
                "%s is still closing, and the stop continues without it class=%s timeout_s=%s",
                *(self._kind.name, self.class_name, CLOSE_TIMEOUT_S),
            )

    def _log(self, method: str, failed: RemoteStorageError, error: BaseException | None) -> None:
        key, now_s = (method, type(error)), self._clock.monotonic_s()
        with self._lock:
            logged_s, left_out = self._logged.get(key, (-math.inf, 0))
            is_due = now_s - logged_s >= LOG_INTERVAL_S
            self._logged[key] = (now_s, 0) if is_due else (logged_s, left_out + 1)
        if is_due:
            _logger.warning("%s left_out=%d", failed, left_out, exc_info=error)
