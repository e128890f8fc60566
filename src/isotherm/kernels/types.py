"""The types of a kernel's arguments and results, in Numba's words. Loads nothing.

A kernel's machine code can be called without its compiler, and so can its signature be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np


class Scalar(NamedTuple):
    """A number, by the name of Numba and NumPy; a call makes a signature of a kernel that returns
    it."""

    name: str

    def __call__(self, *arguments: Type) -> Signature:
        return Signature((self,), is_tuple=False, arguments=arguments)


class Void:
    def __call__(self, *arguments: Type) -> Signature:
        return Signature((), is_tuple=False, arguments=arguments)


class Array(NamedTuple):
    """`layout` is "C", or "A" for any strides. A kernel cannot write to a read-only one."""

    dtype: Any
    ndim: int
    layout: str
    readonly: bool = False


class Tuple(NamedTuple):
    """A call makes a signature of a kernel that returns such a tuple, of int64 alone."""

    items: Sequence[Type]

    def __call__(self, *arguments: Type) -> Signature:
        return Signature(tuple(self.items), is_tuple=True, arguments=arguments)


Type: TypeAlias = Scalar | Array | Tuple


class Signature(NamedTuple):
    """`results` are those of the tuple that the kernel returns, if `is_tuple`."""

    results: Sequence[Type]
    is_tuple: bool
    arguments: Sequence[Type]


def UniTuple(item: Type, count: int) -> Tuple:
    return Tuple((item,) * count)


int8, int32, int64 = Scalar("int8"), Scalar("int32"), Scalar("int64")
uint8, uint64 = Scalar("uint8"), Scalar("uint64")
boolean = Scalar("boolean")
void = Void()

_DTYPES = {"boolean": np.dtype(np.bool_)}


def dtype_of(array: Array) -> np.dtype[Any]:
    """NumPy's type of an array's items."""
    item = array.dtype
    if isinstance(item, Scalar):
        return _DTYPES.get(item.name) or np.dtype(item.name)
    dtype: np.dtype[Any] = item
    return dtype
