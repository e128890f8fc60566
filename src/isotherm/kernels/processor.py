"""The processor as the system describes it, for processes that have not loaded LLVM."""

from __future__ import annotations

import functools
import os
import platform
import sys
from pathlib import Path

# Settings of Numba for another processor than this one.
_OTHER_PROCESSOR = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
# These and Numba's other settings that change the generated code.
_SETTINGS = (
    *_OTHER_PROCESSOR,
    *("NUMBA_OPT", "NUMBA_LOOP_VECTORIZE", "NUMBA_SLP_VECTORIZE", "NUMBA_ENABLE_AVX"),
    *("NUMBA_BOUNDSCHECK", "NUMBA_DEBUGINFO", "NUMBA_CAPTURED_ERRORS"),
)
_FIELDS = ("vendor_id", "cpu family", "model", "stepping", "flags")
_DESCRIPTION = Path("/proc/cpuinfo")


@functools.cache
def description() -> tuple[str, ...] | None:
    """What LLVM knows the processor by: vendor, family, model, stepping, and its features.

    None where kernels are not kept as images: they are for Linux on x86-64 (linking.py).
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        text = _DESCRIPTION.read_text()
    except OSError:
        return None
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    values = tuple(fields.get(name, "") for name in _FIELDS)
    return values if all(values) else None


def target() -> tuple[str, ...] | None:
    """What machine code depends on, besides the kernels and the compiler. None as `description`."""
    processor = description()
    if processor is None:
        return None
    name, features = (os.environ.get(setting) for setting in _OTHER_PROCESSOR)
    # Numba takes no features of this processor for "generic", so all machines share the code.
    is_other = name is not None and (features is not None or name.lower() == "generic")
    settings = (f"{setting}={os.environ.get(setting)}" for setting in _SETTINGS)
    return *(() if is_other else processor), *settings


def has_crc_instruction() -> bool:
    """Whether Numba compiles for a processor with SSE 4.2."""
    processor = description()
    if processor is None or any(os.environ.get(name) is not None for name in _OTHER_PROCESSOR):
        from isotherm.kernels.compiler import target

        return "+sse4.2" in str(target()[2])
    return "sse4_2" in processor[-1].split()
