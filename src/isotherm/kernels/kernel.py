"""Compiles kernels, or loads their machine code from the cache. Importing this module loads Numba.

Kernels are compiled for one signature, without the GIL. They allocate nothing, so reference
counting is switched off (`_nrt`): otherwise Numba counts references to the arrays that it passes
on, atomically and for each record, which took more than half of the decoding time.

Numba's own cache depends on a kernel's file only, not on the functions that it inlines. So this
module has its own cache (machine_code.py), which replaces the cache object of a dispatcher. That
object, and Numba's serialization of compiled code, are not public: tests/unit/kernels check that
both work as used here.
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

# Numba's types for these are not public.
_njit: Any = numba.njit
_rebuild: Any = CompileResult._rebuild
_dumps: Any = dumps

logger = logging.getLogger(__name__)

# Numba's settings that change the generated code, besides the processor.
_SETTINGS = (
    *("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX"),
    *("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "CAPTURED_ERRORS"),
)

# Every kernel that this process has loaded.
kernels: list[Any] = []


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator. The function can be called with the types of `signature` only."""

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher: Any = _njit(nogil=True, _nrt=False)(function)
        dispatcher._cache = _KernelCache(function)
        with _made_by_one_unless_kept(name_of(function)):
            dispatcher.compile(signature)
        # A call with other types raises TypeError instead of compiling for seconds.
        dispatcher.disable_compile()
        kernels.append(dispatcher)
        return dispatcher

    return compiled


def _made_by_one_unless_kept(name: str) -> AbstractContextManager[None]:
    is_kept = machine_code.is_kept(stamp(), name)
    return nullcontext() if is_kept else machine_code.made_by_one(stamp(), name)


def name_of(function: Callable[..., Any]) -> str:
    """The name under which a kernel's machine code is kept."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"


def target() -> tuple[object, ...]:
    """The target of compilation: triple, name and features of the processor, and settings."""
    processor = cpu_target.target_context.codegen().magic_tuple()
    return *processor, *(f"{name}={getattr(config, name, None)}" for name in _SETTINGS)


# Cached: the sources are read once, as this process imported them.
@functools.cache
def stamp() -> str:
    return f"{machine_code.current_source_digest()}-{machine_code.target_digest(target())}"


@functools.cache
def _log_compiling() -> None:
    logger.info("kernels are compiled, once for these sources and processor stamp=%s", stamp())


@functools.cache
def _log_not_kept() -> None:
    logger.warning(
        "compiled kernels are not kept, each process compiles them: no folder can be written to, or"
        " the sources have just changed; set NUMBA_CACHE_DIR"
    )


class _KernelCache(_Cache):
    """The cache of one kernel, in place of Numba's."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = name_of(function)

    @property
    def cache_path(self) -> str:
        return stamp()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        code = machine_code.read(stamp(), self._name)
        if code is None:
            _log_compiling()
            return None
        target_context.refresh()
        return _rebuild(target_context, *pickle.loads(code))  # noqa: S301 - checked

    def save_overload(self, sig: Any, data: Any) -> None:
        # Such code would contain addresses of this process.
        assert not data.library.has_dynamic_globals, self._name
        if machine_code.keep(stamp(), self._name, _dumps(data._reduce())) is None:
            _log_not_kept()

    def enable(self) -> None:
        """No effect: the cache is always enabled."""

    def disable(self) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError
