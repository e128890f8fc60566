"""Compiled loops over records, the one place for all of them. Importing this package loads nothing.

Importing a module of it loads Numba, 0.2 s and some 100 MB, and the machine code of its kernels, which
takes seconds where it has to be compiled first. So callers import these modules in the functions that
call a kernel, never at the top of a module that a broker's start imports.

Kernels have one signature each, given in advance. They run without the GIL, allocate nothing, and read
no byte outside of what they are given, whatever the bytes say. Small functions are inlined by force.
Plain integers stand for enumerations because kernels know only numbers. They import Numba, llvmlite,
NumPy and each other, and nothing else: machine_code.py can so tell what they were compiled from.
"""
