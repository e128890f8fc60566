"""The parts that kernels are made of: functions that the compiler knows by these marks.

Marked functions stay plain functions. So a module of kernels is imported without Numba, and
compiler.py gives Numba what a kernel refers to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

# Functions that kernels call, and whether they are always inlined.
called: dict[Callable[..., Any], bool] = {}

# Functions in the form of Numba's intrinsics: they return a signature and what generates code.
primitives: set[Callable[..., Any]] = set()


def inlined(function: _F) -> _F:
    called[function] = True
    return function


def not_inlined(function: _F) -> _F:
    """Left to the compiler."""
    called[function] = False
    return function


def primitive(function: _F) -> _F:
    primitives.add(function)
    return function
