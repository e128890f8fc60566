"""Access to bytes that Numba compiles slowly from plain Python.

Nothing is checked: the caller guarantees that the bytes exist. Each primitive is in the form of
Numba's intrinsics, and imports it when a kernel is compiled.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg"

from __future__ import annotations

from isotherm.kernels.parts import inlined, primitive

# Bytes behind a copy that `copy_with_room` may read and overwrite.
COPY_ROOM = 64


@primitive
def byte_at(_context, source, _position):
    """A byte, without Numba's branch for negative positions, which count from the end."""
    from numba import types

    def generate(context, builder, signature, arguments):
        source, position = arguments
        data = context.make_array(signature.args[0])(context, builder, source).data
        byte = builder.load(builder.gep(data, [position]))
        return builder.zext(byte, context.get_value_type(types.uint64))

    return types.uint64(source, types.int64), generate


@primitive
def word_at(_context, source, _position):
    """Eight bytes in the machine's byte order."""
    from numba import types

    def generate(context, builder, signature, arguments):
        source, position = arguments
        data = context.make_array(signature.args[0])(context, builder, source).data
        word_pointer = context.get_value_type(types.uint64).as_pointer()
        word = builder.load(builder.bitcast(builder.gep(data, [position]), word_pointer))
        # The position need not be a multiple of 8.
        word.align = 1
        return word

    return types.uint64(source, types.int64), generate


@primitive
def put_at(_context, target, _position, _value):
    """`target[position] = value` for integers, without Numba's branch for negative positions."""
    from numba import types

    def generate(context, builder, signature, arguments):
        target, position, value = arguments
        array_type, _, value_type = signature.args
        data = context.make_array(array_type)(context, builder, target).data
        value = context.cast(builder, value, value_type, array_type.dtype)
        builder.store(value, builder.gep(data, [position]))

    return types.void(target, types.int64, _value), generate


def _block_copy(size):
    """An intrinsic that copies `size` bytes."""

    @primitive
    def copy_block(_context, source, _start, target, _target_start):
        from llvmlite import ir
        from numba import types

        def generate(context, builder, signature, arguments):
            source, start, target, target_start = arguments
            block_pointer = ir.VectorType(ir.IntType(8), size).as_pointer()
            source_data = context.make_array(signature.args[0])(context, builder, source).data
            target_data = context.make_array(signature.args[2])(context, builder, target).data
            block = builder.load(builder.bitcast(builder.gep(source_data, [start]), block_pointer))
            # Neither position need be a multiple of the size.
            block.align = 1
            place = builder.bitcast(builder.gep(target_data, [target_start]), block_pointer)
            builder.store(block, place).align = 1

        return types.void(source, types.int64, target, types.int64), generate

    return copy_block


_copy_16 = _block_copy(16)
_copy_64 = _block_copy(64)


@primitive
def prefetch(_context, array, _index):
    """Start to load a row into the CPU cache, before it is needed."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        array, index = arguments
        data = context.make_array(signature.args[0])(context, builder, array).data
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [data.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
        read, most_local, of_data = number(0), number(3), number(1)
        builder.call(function, [builder.gep(data, [index]), read, most_local, of_data])

    return types.void(array, types.int64), generate


@primitive
def copy(_context, source, _start, _size, target, _target_start):
    """memcpy: three times as fast as a loop here, which copies its last bytes one by one."""
    from numba import types
    from numba.core import cgutils

    def generate(context, builder, signature, arguments):
        source, start, size, target, target_start = arguments
        source_data = context.make_array(signature.args[0])(context, builder, source).data
        target_data = context.make_array(signature.args[3])(context, builder, target).data
        cgutils.raw_memcpy(
            builder,
            builder.gep(target_data, [target_start]),
            builder.gep(source_data, [start]),
            size,
            1,
        )

    return types.void(source, types.int64, types.int64, target, types.int64), generate


@inlined
def copy_with_room(source, start, size, target, target_start):
    """`copy` without a call if it is short. COPY_ROOM bytes exist behind it in both arrays, and
    those of `target` may be overwritten."""
    if size <= 16:
        _copy_16(source, start, target, target_start)
    elif size <= 64:
        _copy_64(source, start, target, target_start)
    elif size <= 128:
        _copy_64(source, start, target, target_start)
        _copy_64(source, start + size - 64, target, target_start + size - 64)
    else:
        copy(source, start, size, target, target_start)
