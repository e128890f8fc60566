"""Compiles kernels. Importing this module loads Numba and LLVM: 0.3 s, and more than 100 MB.

`image_of` is the way on Linux and x86-64: the process that compiles a kernel keeps its machine code
as an image, and other processes need neither of them. `dispatcher_of` is the way elsewhere: each
process loads Numba, which loads its own form of machine code.

Kernels are compiled for one signature, without the GIL. They allocate nothing, so reference
counting is switched off (`_nrt`): otherwise Numba counts references to the arrays that it passes
on, atomically and for each record, which took more than half of the decoding time.

What is used of Numba is not all public: its libraries of compiled code, how it passes arguments,
its serialization of compiled code, and the cache object of a dispatcher. tests/unit/kernels check
that all work as used here.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import types as python_types
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import config
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps
from numba.extending import intrinsic, register_jitable
from numba.np.arrayobj import populate_array

from isotherm.kernels import machine_code, parts
from isotherm.kernels.linking import Image, linked
from isotherm.kernels.native import DIMENSIONS_AT, FIELDS_AT, STRIDES_AT
from isotherm.kernels.types import Array, Scalar, Signature, Tuple, Type

# Numba's types for these are not public.
_njit: Any = numba.njit
_types: Any = numba.types
_populate_array: Any = populate_array
_rebuild: Any = CompileResult._rebuild
_dumps: Any = dumps

_ENTRY = "entry"
_WORD = ir.IntType(64)

# Numba's settings that change the generated code, besides the processor.
_SETTINGS = (
    *("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX"),
    *("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "CAPTURED_ERRORS"),
)


def target() -> tuple[object, ...]:
    """The target of compilation: triple, name and features of the processor, and settings."""
    processor = cpu_target.target_context.codegen().magic_tuple()
    return *processor, *(f"{name}={getattr(config, name, None)}" for name in _SETTINGS)


def image_of(function: Callable[..., Any], signature: Signature) -> Image:
    """Compile a kernel to machine code that needs neither Numba nor LLVM."""
    dispatcher = _compiled(function, signature)
    (compiled,) = dispatcher.overloads.values()
    module = binding.parse_assembly(str(compiled.library._final_module))
    module.link_in(binding.parse_assembly(str(_entry_module(compiled.fndesc))))
    for part in module.functions:
        if not part.is_declaration and part.name != _ENTRY:
            part.linkage = "internal"
    triple, processor, features = target()[:3]
    machine = binding.Target.from_triple(triple).create_target_machine(
        cpu=processor, features=features, opt=3, reloc="pic", codemodel="small"
    )
    # Numba's wrappers for calls from Python go, with all that they refer to.
    options = binding.create_pipeline_tuning_options(speed_level=2)
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, binding.create_pass_builder(machine, options))
    return linked(machine.emit_object(module), _ENTRY)


def _entry_module(described: Any) -> ir.Module:
    """A function that takes a kernel's arguments from the block of native.py, calls the kernel, and
    writes its results into another block. It returns 0, or 1 if the kernel has raised an
    exception."""
    context = cpu_target.target_context
    module = context.create_module("entry")
    kernel = context.declare_function(module, described)
    block = _WORD.as_pointer()
    entry = ir.Function(module, ir.FunctionType(ir.IntType(32), [block, block]), _ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    arguments, results = entry.args
    words = (
        builder.load(builder.gep(arguments, [ir.Constant(_WORD, index)]))
        for index in itertools.count()
    )
    status, result = context.call_conv.call_function(
        builder,
        kernel,
        described.restype,
        described.argtypes,
        [_argument(context, builder, kind, words) for kind in described.argtypes],
    )
    values = [] if described.restype == _types.none else [result]
    if isinstance(described.restype, _types.BaseTuple):
        values = [builder.extract_value(result, index) for index in range(len(described.restype))]
    for index, value in enumerate(values):
        builder.store(value, builder.gep(results, [ir.Constant(_WORD, index)]))
    builder.ret(builder.zext(status.is_error, ir.IntType(32)))
    return module


def _argument(context: Any, builder: Any, kind: Any, words: Iterator[Any]) -> Any:
    """An argument as Numba has it, of the next words."""
    if isinstance(kind, _types.BaseTuple):
        items = [_argument(context, builder, item, words) for item in kind]
        return context.make_tuple(builder, kind, items)
    if isinstance(kind, _types.Array):
        return _array(context, builder, kind, next(words))
    if kind == _types.boolean:
        return builder.icmp_signed("!=", next(words), ir.Constant(_WORD, 0))
    if kind != _types.int64:
        raise NotImplementedError(f"an argument of a kernel is neither array nor int64 type={kind}")
    return next(words)


def _array(context: Any, builder: Any, kind: Any, address: Any) -> Any:
    """An array as Numba has it, of the address of NumPy's object."""

    def word(start: Any, index: int = 0) -> Any:
        place = builder.inttoptr(start, _WORD.as_pointer())
        return builder.load(builder.gep(place, [ir.Constant(_WORD, index)]))

    def field(distance: int) -> Any:
        return word(builder.add(address, ir.Constant(_WORD, distance)))

    array = context.make_array(kind)(context, builder)
    shape = [word(field(DIMENSIONS_AT), axis) for axis in range(kind.ndim)]
    strides = [word(field(STRIDES_AT), axis) for axis in range(kind.ndim)]
    size = ir.Constant(_WORD, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    data = builder.inttoptr(field(FIELDS_AT), array.data.type)
    _populate_array(array, data, shape, strides, size, meminfo=None)
    return array._getvalue()


def dispatcher_of(function: Callable[..., Any], signature: Signature, stamp: str, name: str) -> Any:
    """A kernel that Numba calls, from its kept machine code or compiled."""
    return _compiled(function, signature, _KernelCache(stamp, name))


def _compiled(
    function: Callable[..., Any], signature: Signature, cache: _Cache | None = None
) -> Any:
    dispatcher: Any = _njit(nogil=True, _nrt=False)(_for_numba(function))
    if cache is not None:
        dispatcher._cache = cache
    dispatcher.compile(_numba_signature(signature))
    # A call with other types raises TypeError instead of compiling for seconds.
    dispatcher.disable_compile()
    return dispatcher


# ---- what a kernel refers to


def _for_numba(function: Callable[..., Any]) -> Any:
    """A copy of the function that refers to Numba's forms of the parts it is made of."""
    code = function.__code__
    scope = dict(function.__globals__)
    for name in code.co_names:
        if name in scope:
            scope[name] = _part(scope[name])
    copy = python_types.FunctionType(
        code, scope, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy


def _part(value: Any) -> Any:
    return _compiled_part(value) if isinstance(value, python_types.FunctionType) else value


@functools.cache
def _compiled_part(function: Any) -> Any:
    if function in parts.primitives:
        return intrinsic(function)
    if function in parts.called:
        return register_jitable(forceinline=parts.called[function])(_for_numba(function))
    return function


# ---- types


def _numba_signature(signature: Signature) -> Any:
    results = tuple(map(_numba_type, signature.results))
    single = results[0] if results else _types.void
    result = _types.Tuple(results) if signature.is_tuple else single
    return result(*map(_numba_type, signature.arguments))


def _numba_type(kind: Type) -> Any:
    if isinstance(kind, Scalar):
        return getattr(_types, kind.name)
    if isinstance(kind, Tuple):
        return _types.Tuple(tuple(map(_numba_type, kind.items)))
    assert isinstance(kind, Array), kind
    item = (
        numba.from_dtype(kind.dtype)
        if isinstance(kind.dtype, np.dtype)
        else _numba_type(kind.dtype)
    )
    return _types.Array(item, kind.ndim, kind.layout, readonly=kind.readonly)


# ---- without images


class _KernelCache(_Cache):
    """The cache of one kernel, in place of Numba's, which depends on a kernel's file only, not on
    the functions that it inlines."""

    def __init__(self, stamp: str, name: str) -> None:
        self._stamp, self._name = stamp, name

    @property
    def cache_path(self) -> str:
        return self._stamp

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        code = machine_code.read(self._stamp, self._name)
        if code is None:
            return None
        target_context.refresh()
        return _rebuild(target_context, *pickle.loads(code))  # noqa: S301 - checked

    def save_overload(self, sig: Any, data: Any) -> None:
        # Such code would contain addresses of this process.
        assert not data.library.has_dynamic_globals, self._name
        machine_code.keep(self._stamp, self._name, _dumps(data._reduce()))

    def enable(self) -> None:
        """No effect: the cache is always enabled."""

    def disable(self) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError
