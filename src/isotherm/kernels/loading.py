"""Loads all kernels at once, so that the first call of one does not wait."""

from __future__ import annotations

import importlib
import pkgutil

import isotherm.kernels as package

_COMPILER = f"{package.__name__}.compiler"


def load_all() -> None:
    """Load every kernel. Takes seconds if they must be compiled."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        # Kernels that have to be compiled load the compiler.
        if module.name != _COMPILER:
            importlib.import_module(module.name)
