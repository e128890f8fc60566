"""Loads kernels from their kept machine code, or compiles them. Importing this module loads neither
Numba nor LLVM; compiling a kernel does.

All kernels share one stamp (machine_code.py). A kernel is kept as an image (linking.py) that is
called without its compiler (native.py). Where there are no images, Numba loads its own form.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from isotherm.kernels import machine_code, processor
from isotherm.kernels.linking import Image
from isotherm.kernels.native import native_kernel
from isotherm.kernels.types import Signature

logger = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """A kernel that this process has loaded. `is_compiled` is true if it had to compile it."""

    name: str
    is_compiled: bool


# Every kernel that this process has loaded.
kernels: list[Loaded] = []


def kernel(signature: Signature) -> Callable[[Callable[..., Any]], Any]:
    """A decorator. The function can be called with the types of `signature` only."""

    def loaded(function: Callable[..., Any]) -> Any:
        name = name_of(function)
        with _made_by_one_unless_kept(name):
            code = machine_code.read(stamp(), name)
            if code is None:
                _log_compiling()
            if processor.description() is None:
                callable_kernel = _compiler().dispatcher_of(function, signature, stamp(), name)
            else:
                image = Image.from_bytes(code) if code else _kept(name, function, signature)
                callable_kernel = native_kernel(name, signature, image)
        kernels.append(Loaded(name, is_compiled=code is None))
        return callable_kernel

    return loaded


def _kept(name: str, function: Callable[..., Any], signature: Signature) -> Image:
    """Compile a kernel and keep it for other processes."""
    image: Image = _compiler().image_of(function, signature)
    if machine_code.keep(stamp(), name, image.to_bytes()) is None:
        _log_not_kept()
    return image


def _compiler() -> Any:
    from isotherm.kernels import compiler

    return compiler


def _made_by_one_unless_kept(name: str) -> AbstractContextManager[None]:
    is_kept = machine_code.is_kept(stamp(), name)
    return nullcontext() if is_kept else machine_code.made_by_one(stamp(), name)


def name_of(function: Callable[..., Any]) -> str:
    """The name under which a kernel's machine code is kept."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"


def target() -> tuple[object, ...]:
    """What kernels are compiled for: the processor, and settings."""
    target_of_images = processor.target()
    if target_of_images is not None:
        return target_of_images
    target_of_numba: tuple[object, ...] = _compiler().target()
    return target_of_numba


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
