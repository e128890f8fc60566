"""hypothesis, which kio does not get.

kio imports it if it is installed, to describe its types to it, and it imports pytest. For users it is
not installed.
"""

import importlib
import sys
from pathlib import Path
from types import FrameType

_HIDDEN_FROM = "kio.static._phantom"


def _importer() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name != __name__ and not name.startswith("importlib."):
            return str(name)
        frame = frame.f_back
    return ""


if _importer() == _HIDDEN_FROM:
    raise ImportError(f"left out for {_HIDDEN_FROM} by {__file__}")
# The import system takes what is in `sys.modules` when this module ends.
_FOLDER = Path(__file__).parent
sys.path[:] = [each for each in sys.path if Path(each) != _FOLDER]
del sys.modules[__name__]
importlib.import_module(__name__)
