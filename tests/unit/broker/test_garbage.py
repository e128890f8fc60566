"""Each run of the collector visits few objects, however many there are. In a process of its own,
because the collector's settings are those of a process."""

from __future__ import annotations

import json
import subprocess
import sys

# What all runs together may leave before the next full one, with those of a start's imports left
# out: MIDDLE_RUNS + 2 times the objects of the two younger generations.
VISITED_MAX = 50_000

MANY = """
import asyncio, gc, json
from isotherm.broker.garbage import ShortCollections
visited = []
def count(phase, info):
    if phase == "start" and info["generation"] == 2:
        visited.append(len(gc.get_objects()))
collections = ShortCollections(asyncio.new_event_loop())
collections.start()
gc.callbacks.insert(0, count)
objects = [[number] for number in range(600_000)]
print(json.dumps({"runs": len(visited), "longest": max(visited)}))
"""

GARBAGE = """
import asyncio, gc, json, weakref
from isotherm.broker.garbage import OBJECTS_MADE_MIN, ShortCollections
class Circle:
    pass
collections = ShortCollections(asyncio.new_event_loop())
collections.start()
circle = Circle()
circle.itself = circle
ref = weakref.ref(circle)
objects = [[number] for number in range(OBJECTS_MADE_MIN // 2)]
gc.collect()
del circle
gc.collect()
alive = [ref() is not None]
collections.collect_excluded()
alive.append(ref() is not None)
objects += [[number] for number in range(OBJECTS_MADE_MIN)]
gc.collect()
collections.collect_excluded()
alive.append(ref() is not None)
frozen = gc.get_freeze_count()
print(json.dumps({"alive": alive, "left": len(gc.get_objects()), "frozen": frozen}))
"""

LARGE = """
import asyncio, gc, json, weakref
from isotherm.broker.garbage import BYTES_GROWN_MIN, ShortCollections
class Circle:
    pass
collections = ShortCollections(asyncio.new_event_loop())
collections.start()
circle = Circle()
circle.itself = circle
ref = weakref.ref(circle)
gc.collect()
del circle
gc.collect()
collections.collect_excluded()
alive = [ref() is not None]
other = b"x" * BYTES_GROWN_MIN
collections.collect_excluded()
alive.append(ref() is not None)
print(json.dumps({"alive": alive}))
"""


def output_of(script: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return json.loads(done.stdout)


def test_full_run_visits_what_is_new() -> None:
    output = output_of(MANY)
    assert output["runs"] >= 600_000 // VISITED_MAX
    assert output["longest"] <= VISITED_MAX


def test_excluded_garbage_is_collected_once_there_is_much_more() -> None:
    output = output_of(GARBAGE)
    assert output["alive"] == [True, True, False]
    assert output["left"] <= VISITED_MAX < output["frozen"]


def test_excluded_garbage_is_collected_once_the_process_has_grown() -> None:
    assert output_of(LARGE)["alive"] == [True, False]
