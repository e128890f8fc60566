"""All compiled loops over records. Importing this package loads nothing.

Importing a module of it loads the machine code of its kernels (a millisecond each). If that is not
in the cache, it loads Numba and LLVM (0.3 s, more than 100 MB) and compiles, which takes seconds.
So callers import these modules in the functions that call a kernel, never at the top of a module
that the broker imports at startup.

    a kernel module   kernel.py       a kernel from its kept machine code, or compiled
    types.py          its signature   parts.py, raw_memory.py    what it is made of
    machine_code.py   the cache       processor.py               what the code is for
    native.py         calls machine code without the compiler
    compiler.py       Numba, the only module that loads it; linking.py: its output as an image

Each kernel is compiled for one signature. Kernels run without the GIL, allocate nothing, and read
no byte outside their arguments, whatever the bytes contain. Small functions are always inlined.
Enumerations are plain integers because kernels support only numbers. Kernels import Numba,
llvmlite, NumPy and each other, and nothing else: so machine_code.py knows all sources that they are
compiled from.
"""
