"""The script `isotherm`, and `python -m isotherm`.

Loading the command line takes a tenth of a second. Ctrl+C within it ends the process with one line
and the exit code of an interruption, as it does later. Only Python's own start is before that.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_EXIT_SIGINT = 130
_STANDARD_ERROR = 2


def main() -> None:
    # A shell starts background jobs with the signal ignored, and it stays so.
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_handled:
        signal.signal(signal.SIGINT, _end)
    from isotherm.cli.main import main as run

    try:
        if is_handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        # It came before the command line had its own `try`.
        _end(signal.SIGINT, None)


def _end(number: int, frame: FrameType | None) -> None:
    """A handler of SIGINT. It raises nothing: a module that is being loaded might catch that."""
    del number, frame
    os.write(_STANDARD_ERROR, b"isotherm: interrupted\n")
    os._exit(_EXIT_SIGINT)


if __name__ == "__main__":
    main()
