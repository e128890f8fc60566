"""All compiled loops over records. Importing this package loads nothing.

Importing a module of it loads Numba (0.2 s, about 100 MB) and the machine code of its kernels,
which takes seconds to compile if it is not in the cache. So callers import these modules in the
functions that call a kernel, never at the top of a module that the broker imports at startup.

Each kernel is compiled for one signature. Kernels run without the GIL, allocate nothing, and read
no byte outside their arguments, whatever the bytes contain. Small functions are always inlined.
Enumerations are plain integers because kernels support only numbers. Kernels import Numba,
llvmlite, NumPy and each other, and nothing else: so machine_code.py knows all sources that they are
compiled from.
"""
