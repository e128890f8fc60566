"""Compile every kernel now, so that no process has to compile one when it needs it.

Run: python -m isotherm.kernels [--into FOLDER] [--in-background]

The machine code goes into the cache that processes of this installation use. With --into a copy
goes into another folder, which can be shipped to other machines: set NUMBA_CACHE_DIR to it there.
It is used if Isotherm, Python, Numba and the processor are the same, and ignored otherwise.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from isotherm.kernels import machine_code
from isotherm.kernels.loading import load_all

_LOWEST_PRIORITY = 19


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m isotherm.kernels",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument(
        "--into", type=Path, metavar="FOLDER", help="write a copy there, to ship to other machines"
    )
    parser.add_argument("--in-background", action="store_true", help="run at the lowest priority")
    options = parser.parse_args()
    into: Path | None = options.into
    if options.in_background:
        os.nice(_LOWEST_PRIORITY)
    if into is not None:
        os.environ["NUMBA_CACHE_DIR"] = str(into)
    load_all()
    from isotherm.kernels.kernel import kernels, stamp

    if into is not None:
        for kernel in kernels:
            code = machine_code.read(stamp(), kernel.name)
            if code is None:
                parser.error(f"folder cannot be written to folder={into}")
            machine_code.keep_in(machine_code.chosen_folder(into), stamp(), kernel.name, code)
    compiled = sum(kernel.is_compiled for kernel in kernels)
    print(f"kernels={len(kernels)} compiled={compiled} stamp={stamp()}")


if __name__ == "__main__":
    main()
