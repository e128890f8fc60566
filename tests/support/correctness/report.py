"""The report of a correctness run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.support.correctness.checker import Anomaly
from tests.support.correctness.crash_points import CrashPoint, CrashSchedule, table
from tests.support.correctness.erasing import Erased
from tests.support.correctness.history import Operation
from tests.support.correctness.profile import Fault
from tests.support.correctness.settled_tier import TierFindings

ANOMALIES_SHOWN_MAX = 20
_SHOWN_PER_NAME_MAX = 4
_LOGGED = re.compile(r"^\S+ \S+ (WARNING|ERROR|CRITICAL) ([\w.]+: (?:[a-zA-Z,;]+ )*)", re.MULTILINE)
_LOGGED_CHARACTERS_MAX = 100


@dataclass(slots=True)
class Report:
    """The counts of all rounds together."""

    rounds: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Failed operations by error."""
    records_sent: int = 0
    records_read: int = 0
    segments_in_bucket: int = 0
    unfinished_uploads: int = 0
    sole_copies_deleted: int = 0
    partitions_in_both_tiers: int = 0
    """Partitions whose final read began in the bucket and ended on the local disk."""
    logged: Counter[str] = field(default_factory=Counter)
    """Warnings and errors of the broker, without their details."""
    hits: Counter[CrashPoint] = field(default_factory=Counter)
    missed: list[CrashPoint] = field(default_factory=list)
    """The crash points of processes that did not reach them in time."""
    life: tuple[str, ...] = ()
    """The kinds of write that a precise run must reach."""
    erasures: int = 0
    """The staged runs, and with `records_erased` what they erased."""
    records_erased: int = 0
    erasures_failed: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)

    @property
    def kills_and_pauses(self) -> int:
        return sum(self.faults[each] for each in (Fault.KILL, Fault.CRASH, Fault.PAUSE))

    def add_operations(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            self.operations[f"{operation.kind.value}:{operation.outcome.value}"] += 1
            if operation.error:
                self.errors[f"{operation.kind.value}:{operation.error}"] += 1
            self.records_sent += len(operation.sends())
            self.records_read += sum(len(poll.reads) for poll in operation.polls())

    def add_tiers(self, findings: TierFindings) -> None:
        self.anomalies += findings.anomalies
        self.segments_in_bucket += findings.finished_segments
        self.unfinished_uploads += findings.unfinished_uploads
        self.sole_copies_deleted += findings.sole_copies_deleted

    def add_erased(self, erased: Erased) -> None:
        self.erasures += erased.runs
        self.erasures_failed += erased.failed
        self.records_erased += len(erased.values)

    def add_log(self, text: str) -> None:
        for level, what in _LOGGED.findall(text):
            self.logged[f"{level} {what.strip()[:_LOGGED_CHARACTERS_MAX]}"] += 1

    def add_points(self, schedules: Iterable[CrashSchedule]) -> None:
        writes: dict[str, None] = {}
        for schedule in sorted(schedules, key=lambda each: -len(each.life)):
            self.hits += schedule.hits
            writes |= dict.fromkeys(schedule.life)
        self.life = tuple(writes)

    def lines(self) -> list[str]:
        faults = " ".join(f"{fault.value}={self.faults[fault]}" for fault in Fault)
        names = Counter(anomaly.name for anomaly in self.anomalies)
        points = table(self.hits, self.life) if self.hits else []
        return [
            f"rounds={self.rounds}",
            f"segments in_bucket={self.segments_in_bucket}",
            f"uploads unfinished={self.unfinished_uploads}",
            f"copies deleted_while_the_only_one={self.sole_copies_deleted}",
            f"partitions in_both_tiers={self.partitions_in_both_tiers}",
            f"records sent={self.records_sent} read={self.records_read}",
            f"erasures runs={self.erasures} failed={self.erasures_failed}",
            f"records erased={self.records_erased}",
            f"faults {faults}",
            f"operations {_counts(self.operations)}",
            f"errors {_counts(self.errors)}",
            *(f"logged {count} x {what}" for what, count in sorted(self.logged.items())),
            *([f"killed at a durable write: {'before':>36} {'after':>6}"] if points else []),
            *points,
            *self._anomalies_shown(),
            f"anomalies {_counts(names)}",
        ]

    def _anomalies_shown(self) -> list[str]:
        shown: list[str] = []
        by_name: Counter[str] = Counter()
        for name, detail in self.anomalies:
            by_name[name] += 1
            if by_name[name] <= _SHOWN_PER_NAME_MAX and len(shown) < ANOMALIES_SHOWN_MAX:
                shown.append(f"  {name}: {detail}")
        return shown


def _counts(counts: Counter[str]) -> str:
    return " ".join(f"{name}={count}" for name, count in sorted(counts.items())) or "none"
