"""A broker starts on a data directory in which one file is damaged; each file in turn.

The broker starts, or refuses with one error that names the file. It serves all other partitions
whole. The partition of the file is served whole; or it lacks a tail that was not flushed, and the
log says so; or it is offline. No record ever changes.
"""

from __future__ import annotations

import logging
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from isotherm.broker.tier import lineage_restorer
from isotherm.errors import IsothermError
from isotherm.segment.file_names import parse_partition_directory
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import TopicPartition
from tests.support.conditions import wait_until
from tests.support.data_directory import Served, serve, started, write_history

Contents = dict[TopicPartition, Served | None]

DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "emptied": lambda data, rng: b"",
    "cut in half": lambda data, rng: data[: len(data) // 2],
    "cut by a byte": lambda data, rng: data[:-1],
    "zeroed": lambda data, rng: bytes(len(data)),
    "rubbish": lambda data, rng: rng.randbytes(len(data)),
    "deleted": lambda data, rng: None,
}
# Files without content, or with content that the broker does not use.
PASSED_OVER = (".lock",)
RECOVERED_END = re.compile(r"log is recovered after an unclean stop .* log_end_offset=(\d+)")
GAP = re.compile(r"first_missing_offset=(\d+) next_offset=(\d+)")
METADATA_LOG = "__cluster_metadata-0"


class Case(NamedTuple):
    stop: str
    file: Path
    damage: str

    def __str__(self) -> str:
        return f"{self.stop}: {self.file} {self.damage}"

    @property
    def partition(self) -> TopicPartition | None:
        parsed = parse_partition_directory(self.file.parts[0])
        return parsed.topic_partition if parsed is not None else None


class History(NamedTuple):
    folders: dict[str, Path]
    whole: dict[str, Contents]
    flushed: dict[TopicPartition, int]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder = tmp_path_factory.mktemp("history")
    folders = {"clean": folder / "clean", "killed": folder / "killed"}
    write_history(folder / "first", folders["clean"], folders["killed"])
    whole = {}
    for stop, path in folders.items():
        shutil.copytree(path, copy := folder / f"{stop}-whole")
        with started(copy) as broker:
            whole[stop] = serve(broker)
        shutil.rmtree(copy)
    assert all(each is not None and each.records for each in whole["clean"].values())
    return History(folders, whole, {})


@pytest.fixture(autouse=True)
def _epochs_are_restored_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try may come before the remote metadata is read. The next one waits a second."""
    monkeypatch.setattr(lineage_restorer, "RETRY_INTERVAL_S", 0.02)


def cases_of(history: History) -> list[Case]:
    """Every damage to every file. Of a topic's two partitions only the first is damaged."""
    return [
        Case(stop, path.relative_to(folder / "log"), damage)
        for stop, folder in history.folders.items()
        for path in sorted((folder / "log").rglob("*"))
        if path.is_file() and path.name not in PASSED_OVER
        if not path.relative_to(folder / "log").parts[0].endswith("-1")
        for damage in DAMAGES
        if path.stat().st_size > 0 or damage == "deleted"
    ]


class Outcome(NamedTuple):
    refusal: IsothermError | None
    served: Contents


def start_on(folder: Path) -> Outcome:
    try:
        with started(folder) as broker:
            wait_for_lineage(broker)
            return Outcome(None, serve(broker))
    except IsothermError as error:
        return Outcome(error, {})


def wait_for_lineage(broker: EmbeddedBroker) -> None:
    """A partition may be offline until its leader epochs are read from the remote tier."""
    replica_manager = broker.node.services.replica_manager

    def is_settled() -> bool:
        return not any(
            "leader epochs are lost" in str(log.reason) for log in replica_manager.damaged_logs()
        )

    wait_until(is_settled, "leader epochs are restored")


def faults_of(
    case: Case, history: History, folder: Path, caplog: pytest.LogCaptureFixture
) -> list[str]:
    """Start a broker on the damaged files; return what it did wrong."""
    shutil.copytree(history.folders[case.stop], folder)
    path = folder / "log" / case.file
    damaged = DAMAGES[case.damage](path.read_bytes(), random.Random(str(case)))
    if damaged is None:
        path.unlink()
    else:
        path.write_bytes(damaged)
    caplog.clear()
    outcome = start_on(folder)
    lines = [record.getMessage() for record in caplog.records]
    faults = [f"traceback: {record.getMessage()}" for record in caplog.records if record.exc_info]
    if outcome.refusal is not None:
        is_logged = case.file.parts[0] in str(outcome.refusal)
        if case.file.parts[0] not in (METADATA_LOG, "meta.properties"):
            faults.append(f"refused: {outcome.refusal!r}")
        elif not is_logged and METADATA_LOG not in str(outcome.refusal):
            faults.append(f"refusal names no file: {outcome.refusal!r}")
    elif case.file.parts[0] == "meta.properties":
        if case.damage != "cut by a byte":
            faults.append("started without its identity")
    else:
        for partition, whole in history.whole[case.stop].items():
            assert whole is not None
            found = outcome.served.get(partition)
            faults += [
                f"{partition}: {fault}" for fault in faults_in(partition, whole, found, lines, case)
            ]
    shutil.rmtree(folder)
    return faults


def faults_in(
    partition: TopicPartition, whole: Served, found: Served | None, lines: list[str], case: Case
) -> list[str]:
    is_damaged = partition == case.partition
    logged = [line for line in lines if case.file.parts[0] in line]
    if found is None:
        if partition.topic == "tiered" and "remote_log_metadata" in str(case.file):
            return (
                []
                if any("isotherm pipeline rebuild" in line for line in logged)
                else ["not logged"]
            )
        if not is_damaged:
            return ["offline"]
        return (
            []
            if any("partition is offline" in line for line in logged)
            else ["offline, not logged"]
        )
    if found == whole:
        return []
    if "__transaction_state" in str(case.file) and partition.topic == "transactional":
        # Markers may be written again.
        return [] if found[2:] == whole[2:] else ["differs"]
    if not is_damaged:
        return [f"differs: {_range(whole)} to {_range(found)}"]
    end = _logged_end(logged, found.log_end_offset)
    wrong = [
        offset
        for served, expected in ((found.records, whole.records), (found.committed, whole.committed))
        for offset, record in served.items()
        if expected.get(offset) != record and offset < end
    ]
    if wrong:
        return [f"other records at {wrong[:3]}"]
    if case.stop == "clean" or found.log_start_offset != whole.log_start_offset:
        return [f"shorter: {_range(found)} for {_range(whole)}"]
    if (
        {record for record in whole.records if record < end}
        - found.records.keys()
        - _logged_gaps(logged)
    ):
        return ["holes, untold"]
    is_logged = any(RECOVERED_END.search(line) for line in logged)
    return [] if is_logged else [f"cut to {end}, untold"]


def _logged_end(logged: list[str], served_end: int) -> int:
    """The log end offset after recovery; a coordinator may have written to the log since."""
    ends = [int(found[1]) for line in logged if (found := RECOVERED_END.search(line))]
    return min([served_end, *ends])


def _logged_gaps(logged: list[str]) -> set[int]:
    gaps = [found for line in logged if (found := GAP.search(line))]
    return {offset for gap in gaps for offset in range(int(gap[1]), int(gap[2]))}


def _range(served: Served) -> str:
    return f"{served.log_start_offset}..{served.log_end_offset}"


def check(
    cases: list[Case], history: History, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    faults = {
        str(case): found for case in cases if (found := faults_of(case, history, folder, caplog))
    }
    assert not faults, "\n".join(f"{case}: {found}" for case, found in faults.items())


@pytest.mark.slow
def test_damage_to_one_file_costs_no_more_than_that_file(
    history: History, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cases = cases_of(history)
    assert len(cases) > 300
    chosen = random.Random(1).sample(cases, 60)
    # Partitions that need the remote tier to recover.
    chosen += [case for case in cases if str(case.file) == "tiered-0/leader-epoch-checkpoint"]
    check(list(dict.fromkeys(chosen)), history, tmp_path / "damaged", caplog)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_damage_to_any_file_costs_no_more_than_that_file(
    history: History, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check(cases_of(history), history, tmp_path / "damaged", caplog)
