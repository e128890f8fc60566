"""How all kernels are compiled, or loaded as they were compiled before. Importing this loads Numba.

To the one signature given and without the GIL. They allocate nothing, and are told so (`_nrt`): Numba
else counts references to the arrays that it passes on, atomically and for every record, which took more
than half of the time that decoding took.

Numba's own cache goes by the file of a kernel and does not see what it inlines. So this has one of its
own (machine_code.py), behind the place where a dispatcher asks for its cache. That place, and how Numba
turns what it has compiled into bytes, is not public: tests/unit/kernels hold that both do as
they are used here.
"""

from __future__ import annotations

import functools
import logging
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numba
from numba.core import config
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from isotherm.kernels import machine_code

# Of no public type.
_njit: Any = numba.njit
_rebuild: Any = CompileResult._rebuild
_dumps: Any = dumps

logger = logging.getLogger(__name__)

# What else than the processor changes the code that Numba makes.
_SETTINGS = (
    *("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX"),
    *("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "CAPTURED_ERRORS"),
)

# Every kernel that this process has.
kernels: list[Any] = []


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator. The function can be called with what `signature` says, and with nothing else."""

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher: Any = _njit(nogil=True, _nrt=False)(function)
        dispatcher._cache = _KernelCache(function)
        with _made_by_one_unless_kept(name_of(function)):
            dispatcher.compile(signature)
        dispatcher.disable_compile()
        kernels.append(dispatcher)
        return dispatcher

    return compiled


def _made_by_one_unless_kept(name: str) -> AbstractContextManager[None]:
    is_kept = machine_code.is_kept(stamp(), name)
    return nullcontext() if is_kept else machine_code.made_by_one(stamp(), name)


def name_of(function: Callable[..., Any]) -> str:
    """Under which a kernel's machine code is kept."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"


def target() -> tuple[object, ...]:
    """What kernels are compiled for: triple, name and features of the processor, and settings."""
    processor = cpu_target.target_context.codegen().magic_tuple()
    return *processor, *(f"{name}={getattr(config, name, None)}" for name in _SETTINGS)


@functools.cache
def stamp() -> str:
    return f"{machine_code.current_source_digest()}-{machine_code.target_digest(target())}"


@functools.cache
def _tell_that_it_takes_long() -> None:
    logger.info("kernels are compiled, once for these sources and processor stamp=%s", stamp())


@functools.cache
def _tell_that_nothing_is_kept() -> None:
    logger.warning(
        "compiled kernels are not kept, each process compiles them: no folder can be written to, or"
        " the sources have just changed; set NUMBA_CACHE_DIR"
    )


class _KernelCache(_Cache):
    """Of one kernel, as its dispatcher sees it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = name_of(function)

    @property
    def cache_path(self) -> str:
        return stamp()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        code = machine_code.read(stamp(), self._name)
        if code is None:
            _tell_that_it_takes_long()
            return None
        target_context.refresh()
        return _rebuild(target_context, *pickle.loads(code))  # noqa: S301 - checked

    def save_overload(self, sig: Any, data: Any) -> None:
        # It would hold addresses of this process.
        assert not data.library.has_dynamic_globals, self._name
        if machine_code.keep(stamp(), self._name, _dumps(data._reduce())) is None:
            _tell_that_nothing_is_kept()

    def enable(self) -> None:
        """It always is."""

    def disable(self) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError
