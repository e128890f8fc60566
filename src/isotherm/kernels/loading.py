"""All kernels at once, for those who would rather wait now than at the first call."""

from __future__ import annotations

import importlib
import pkgutil

import isotherm.kernels as package


def load_all() -> None:
    """Load every kernel that there is; seconds where they have to be compiled."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
