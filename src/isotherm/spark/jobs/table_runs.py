"""Runs the updates of one topic's table, one after the other.

Each adds the records that are new.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isotherm.spark.driver.topic_plan import TopicPlan, TopicPlanner
from isotherm.spark.jobs.cost import Cost, check_cost
from isotherm.spark.jobs.table import TableRun, add_to_table, cost_of_table
from isotherm.spark.options import SourceOptions
from isotherm.spark.small_input import SMALL_LOG_BYTES_MAX
from isotherm.spark.tables.schema_registry import RegistrySettings, check_registry
from isotherm.spark.tables.topic_table import (
    LATEST,
    Identity,
    TopicTable,
    check_options,
    check_topic,
)
from isotherm.spark.tables.value_formats import ValueFormat
from isotherm.spark.tables.value_types import KeyValue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class NextRun:
    """The plan and cost of the next run. `identity` is that of the table, which need not exist
    yet."""

    plan: TopicPlan
    cost: Cost
    identity: Identity
    exists: bool

    @property
    def is_small(self) -> bool:
        """Whether the driver reads the new records itself. A run of newest values also reads the
        keys of the whole table, which may be large."""
        is_newest = self.identity.mode == LATEST
        return not is_newest and self.plan.size_in_bytes <= SMALL_LOG_BYTES_MAX


def run_name() -> str:
    """A unique name for a run, which is part of the names of its files."""
    return random.SystemRandom().randbytes(8).hex()


class TableRuns:
    """`identity` is the one that the table must have; `look` fills in its topic_id. A run that
    would read more than `max_bytes` is refused. Not thread-safe."""

    def __init__(
        self,
        options: SourceOptions,
        table: TopicTable,
        identity: Identity,
        formats: KeyValue[ValueFormat],
        registry: RegistrySettings | None,
        max_bytes: int | None,
    ) -> None:
        self._options = options
        self._table = table
        self._identity = identity
        self._formats = formats
        self._registry = registry
        self._max_bytes = max_bytes
        self._planner: TopicPlanner | None = None

    def look(self) -> NextRun:
        """Read the current table and topic, and plan the next run. Writes nothing.

        Raises ConfigError if the table was made from another topic or with other settings, and
        PolicyViolationError if the run would read too much. SchemaRegistryError if there is
        something to decode and the registry does not answer.
        """
        identity = self._table.identity()
        if identity is not None:
            check_options(identity, self._identity, self._table.name)
        plan = self._plan(identity)
        expected = replace(self._identity, topic_id=plan.topic_id)
        cost = cost_of_table(plan, self._options)
        check_cost(cost, self._max_bytes)
        # Before Spark starts, and only if there is something to decode.
        if plan.offsets and self._registry is not None:
            check_registry(self._registry)
        return NextRun(plan, cost, expected, identity is not None)

    def complete(self, run: NextRun) -> None:
        """Finish the steps after a commit that an interrupted run left undone."""
        if run.exists:
            self._table.settle()

    def add(self, spark: SparkSession, run: NextRun, show_step: Callable[[str], None]) -> TableRun:
        """Add the records of the run, which must have some, in one commit. See add_to_table."""
        if not run.exists:
            self._table.create(run.identity)
        newest = run.identity.mode == LATEST
        return add_to_table(
            spark,
            self._options,
            run.plan,
            self._table,
            self._formats,
            run_name(),
            show_step,
            newest=newest,
        )

    def close(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _plan(self, identity: Identity | None) -> TopicPlan:
        def check_id(topic_id: str) -> None:
            if identity is not None:
                check_topic(identity, self._identity.topic, topic_id, self._table.name)

        if self._planner is None:
            self._planner = TopicPlanner(self._options)
        try:
            return self._planner.plan(self._table.covered(), check_id)
        except BaseException:
            # A planner is unusable after an error. The next run opens a new one.
            self.close()
            raise
