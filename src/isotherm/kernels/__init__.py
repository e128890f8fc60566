"""Compiled loops over records, the one place for all of them. Importing this package loads nothing.

Importing a module of it loads Numba, 0.3 s and some 100 MB, and the machine code of its kernels, which
takes seconds where it has to be compiled first. So callers import these modules in the functions that
call a kernel, never at the top of a module that a broker's start imports.

Kernels import Numba, llvmlite, NumPy and each other, and nothing else.
"""
