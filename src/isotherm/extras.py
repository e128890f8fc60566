"""The extra that installs a missing package.

`pip install isotherm` installs the clients of the command line. A command imports other packages
when it runs, so a missing one is found there.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from isotherm.errors import ConfigError

TIER = "tier"
BROKER = "broker"
SPARK = "spark"
CONSOLE = "console"

# The smallest extra that brings each module. A test compares them with pyproject.toml.
EXTRA_OF_MODULE = {
    **dict.fromkeys(("Crypto", "cramjam", "google_crc32c", "isal", "lz4", "numba"), TIER),
    **dict.fromkeys(("numpy", "obstore", "prometheus_client", "pyarrow", "re2", "zstandard"), TIER),
    **dict.fromkeys(("jwt", "uvloop"), BROKER),
    **dict.fromkeys(("pandas", "pyspark"), SPARK),
    **dict.fromkeys(("starlette", "uvicorn"), CONSOLE),
}


def missing_extra(error: ModuleNotFoundError, extra: str | None = None) -> ConfigError | None:
    """The error to raise instead, which says what to install: `extra`, or else the smallest one.

    None if the module is of no extra: then it is missing for another reason.
    """
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_OF_MODULE:
        return None
    needed = extra or EXTRA_OF_MODULE[module]
    return ConfigError(
        f"this needs {module}, which is not installed: run {install_command(needed)}"
    )


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra. In a checkout it names the checkout's
    folder: pip would look for a release of this version elsewhere."""
    checkout = _checkout()
    place = "isotherm" if checkout is None else str(checkout)
    return f"pip install {'' if checkout is None else '-e '}{shlex.quote(f'{place}[{extra}]')}"


def _checkout() -> Path | None:
    """The folder of the checkout that this module is in; None if it was installed from a wheel."""
    folder = Path(__file__).resolve().parents[2]
    is_checkout = (folder / "pyproject.toml").is_file() and (folder / "src/isotherm").is_dir()
    return folder if is_checkout else None
