"""A pytest plug-in that records real clients' requests, from which the fuzzer starts.

    .venv/bin/python -m pytest -p oracle.record_requests -m "not slow" tests/interop

writes `tests/fault/recorded_requests.txt`: payloads of request frames, as hexadecimal digits, for
each API and version that a client used with a broker within the test process. To keep the file
small, only the shortest, the longest below SIZE_MAX and one in between are kept for each.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "tests" / "fault" / "recorded_requests.txt"
SIZE_MAX = 1000

_frames: dict[tuple[int, int], set[bytes]] = defaultdict(set)


def pytest_sessionstart() -> None:
    # Imported late: the broker's imports must not come before pytest's own plug-ins.
    from isotherm.broker.server.dispatch.dispatch import Dispatcher

    handle_frame = Dispatcher.handle_frame

    def recording(self: Any, frame: memoryview, connection: Any) -> Any:
        if 8 < len(frame) <= SIZE_MAX:
            _frames[struct.unpack_from(">hh", frame)].add(bytes(frame))
        return handle_frame(self, frame, connection)

    Dispatcher.handle_frame = recording  # type: ignore[method-assign]


def pytest_sessionfinish() -> None:
    lines = []
    for _, frames in sorted(_frames.items()):
        ordered = sorted(frames, key=lambda frame: (len(frame), frame))
        kept = {ordered[0], ordered[len(ordered) // 2], ordered[-1]}
        lines += [frame.hex() for frame in sorted(kept)]
    RECORDED.write_text("\n".join(lines) + "\n", encoding="ascii")
