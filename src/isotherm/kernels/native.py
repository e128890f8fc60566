"""Kernels as machine code that is called without its compiler.

A call packs its arguments into one block of 64-bit integers: numbers as they are, and the addresses
of NumPy's objects of the arrays. The kernel's entry, which compiler.py adds, reads the arrays'
addresses and shapes from these, as NumPy's interface for C describes them (PyArrayObject_fields).
It runs without the GIL. To ask NumPy for the address of an array takes longer than the rest of a
call: 0.8 us, and 7 for an array of records.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from isotherm.kernels.linking import Image
from isotherm.kernels.types import Array, Scalar, Signature, Tuple, Type, dtype_of

_ENTRY: Any = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.c_char_p)
_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400  # NumPy's NPY_ARRAY_...


def _executable(code: bytes) -> tuple[mmap.mmap, int]:
    """Memory of this process with the code, and its address. Raises OSError."""
    pages = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    pages.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    c_library = ctypes.CDLL(None, use_errno=True)
    protection = mmap.PROT_READ | mmap.PROT_EXEC
    if c_library.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(code)), protection):
        raise OSError(ctypes.get_errno(), "memory cannot be made executable")
    return pages, address


def _with_addresses(image: Image) -> bytes:
    code = bytearray(image.code)
    c_library = ctypes.CDLL(None)
    for place, name in image.externals.items():
        address = ctypes.cast(getattr(c_library, name), ctypes.c_void_p).value
        struct.pack_into("<Q", code, place, address or 0)
    return bytes(code)


def native_kernel(name: str, signature: Signature, image: Image) -> Callable[..., Any]:
    """A kernel that can be called. Thread-safe.

    TypeError for arrays of other types than the signature's. ArithmeticError if the code raises an
    exception: kernels check what they divide by, so it is an error of the kernel.

    Its source is written for the signature: a loop over the arguments would take longer than the
    kernel of a small batch.
    """
    pages, address = _executable(_with_addresses(image))
    result_count = len(signature.results)
    scope: dict[str, Any] = {
        # Held as long as the code may be called.
        "pages": pages,
        "entry": _ENTRY(address + image.entry),
        "failed": _failed,
        "refuse": _refuse,
        "ndarray": np.ndarray,
        "unpack": struct.Struct(f"={result_count}q").unpack,
        "name": name,
    }
    names = [f"a{index}" for index in range(len(signature.arguments))]
    checks: list[str] = []
    words: list[str] = []
    for variable, kind in zip(names, signature.arguments, strict=True):
        for leaf, path in _leaves(kind, variable):
            if isinstance(leaf, Array):
                dtype = dtype_of(leaf)
                scope[f"dtype{len(scope)}"] = dtype
                checks.append(_check(leaf, path, f"dtype{len(scope) - 1}", dtype))
                words.append(f"id({path})")
            else:
                words.append(path)
    scope["pack"] = struct.Struct(f"={len(words)}q").pack
    answers = "unpack(results)" if signature.is_tuple else "unpack(results)[0]"
    source = [
        f"def call({', '.join(names)}):",
        *checks,
        # New bytes, which nobody else has yet: the code writes the results into them.
        f"    results = bytes({8 * result_count})",
        f"    if entry(pack({', '.join(words)}), results): failed(name)",
        f"    return {answers if result_count else None}",
    ]
    exec("\n".join(source), scope)  # noqa: S102 - of words that this function has chosen
    call: Callable[..., Any] = scope["call"]
    return call


def _check(array: Array, path: str, dtype_name: str, dtype: np.dtype[Any]) -> str:
    """A line that refuses an array of another type."""
    flags = _WRITEABLE * (not array.readonly) | _CONTIGUOUS * (array.layout == "C")
    # Kernels read the fields of records as if they had no alignment.
    flags |= _ALIGNED * (dtype.fields is None)
    return (
        f"    if not (isinstance({path}, ndarray) and {path}.dtype == {dtype_name}"
        f" and {path}.ndim == {array.ndim} and {path}.flags.num & {flags} == {flags}):"
        f" refuse(name, {path})"
    )


def _leaves(kind: Type, path: str) -> Iterator[tuple[Scalar | Array, str]]:
    if isinstance(kind, Tuple):
        for index, item in enumerate(kind.items):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield kind, path


def _refuse(name: str, argument: object) -> None:
    shown = f"{argument.dtype} {argument.flags}" if isinstance(argument, np.ndarray) else argument
    raise TypeError(f"a kernel is called with an array of another type kernel={name}: {shown}")


def _failed(name: str) -> None:
    raise ArithmeticError(f"a kernel failed kernel={name}")


class _Fields(ctypes.Structure):
    """The beginning of PyArrayObject_fields, behind the head of each object."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("nd", ctypes.c_int),
        ("dimensions", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    )


FIELDS_AT = object.__basicsize__
"""The distance of the fields from the address of an array's object."""
DIMENSIONS_AT = FIELDS_AT + _Fields.dimensions.offset
STRIDES_AT = FIELDS_AT + _Fields.strides.offset


def _is_layout_as_expected() -> bool:
    sample = np.zeros((2, 3), np.int32)[:, ::2]
    fields = _Fields.from_address(id(sample) + FIELDS_AT)
    shape, strides = fields.dimensions[: fields.nd], fields.strides[: fields.nd]
    return (fields.data, *shape, *strides) == (sample.ctypes.data, *sample.shape, *sample.strides)


# Checked once: with a NumPy of another layout, code would read and write anywhere.
if not _is_layout_as_expected():
    raise ImportError("the arrays of this NumPy have an unknown layout")
