"""Files with Spark go to the worker with a session, and to others only at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.spark_scheduling import SparkOnOneWorker, needs_session

SPARK = [
    "tests/spark/test_table.py",
    "tests/oracle/test_bucket_jobs.py",
    "tests/spark/test_load.py",
]
OTHERS = [f"tests/unit/log/test_roll.py{number}" for number in range(4)]


class Worker:
    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.spark_scheduling.needs_session", SPARK.__contains__)


def scheduled(workers: list[Worker], files: list[str]) -> tuple[SparkOnOneWorker, list[str]]:
    """The scheduler after the first files, and its tests: four in each file."""
    config: Any = SimpleNamespace(
        getvalue=lambda _name: [f"{len(workers)}*popen"],
        option=SimpleNamespace(loadscopereorder=False),
    )
    scheduler = SparkOnOneWorker(config)
    tests = [f"{file}::test_{number}" for file in files for number in range(4)]
    for worker in workers:
        scheduler.add_node(worker)  # type: ignore[arg-type]
        scheduler.add_node_collection(worker, tests)  # type: ignore[arg-type]
    scheduler.schedule()
    return scheduler, tests


def ran(workers: list[Worker], files: list[str], slow: Worker) -> dict[str, Worker]:
    """The worker of each file. `slow` ends a test only when no other worker can."""
    scheduler, tests = scheduled(workers, files)
    of_file: dict[str, Worker] = {}
    while busy := [worker for worker in workers if worker.sent]:
        worker = min(busy, key=lambda each: each is slow)
        index = worker.sent.pop(0)
        of_file[tests[index].partition("::")[0]] = worker
        scheduler.mark_test_complete(worker, index)  # type: ignore[arg-type]
    assert scheduler.tests_finished
    return of_file


@pytest.mark.parametrize("order", [SPARK + OTHERS, OTHERS + SPARK, [*OTHERS[:2], *SPARK, *OTHERS]])
def test_one_worker_runs_all_files_with_spark(order: list[str]) -> None:
    first, second = workers = [Worker("first"), Worker("second")]
    of_file = ran(workers, list(dict.fromkeys(order)), slow=second)
    assert of_file.keys() == {*SPARK, *OTHERS}
    assert {id(of_file[file]) for file in SPARK} == {id(first)}
    assert second in [of_file[file] for file in OTHERS]


def test_worker_without_a_session_helps_when_nothing_else_is_left() -> None:
    first, second = workers = [Worker("first"), Worker("second")]
    of_file = ran(workers, SPARK + OTHERS[:1], slow=first)
    assert of_file[SPARK[0]] is first
    assert of_file[SPARK[-1]] is second


def test_session_of_a_worker_that_has_crashed_is_no_session() -> None:
    first, second = workers = [Worker("first"), Worker("second")]
    scheduler, tests = scheduled(workers, [SPARK[0], *OTHERS[:2], SPARK[1], *OTHERS[2:]])
    assert tests[first.sent[0]].startswith(SPARK[0])
    scheduler.remove_node(first)  # type: ignore[arg-type]
    while not any(tests[index].startswith(SPARK[1]) for index in second.sent):
        scheduler.mark_test_complete(second, second.sent.pop(0))  # type: ignore[arg-type]
    assert OTHERS[-1] in scheduler.workqueue, "the session is started before the end"


def test_files_that_need_a_session_are_those_that_name_it() -> None:
    assert needs_session("tests/spark/test_table.py")
    assert needs_session("tests/oracle/test_bucket_jobs.py")
    assert needs_session("tests/oracle/test_table_rest_catalog.py")
    assert not needs_session("tests/oracle/test_spark_cluster.py")
    assert not needs_session("tests/unit/log/test_roll.py")
