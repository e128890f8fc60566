"""Steps of groups that take long are applied in a thread, one at a time for each group."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Protocol, TypeVar

from isotherm.broker.shared_futures import shared_result

# One, so that costly assignments take the time of one core at most. Small groups, and heartbeats
# that change nothing, do not wait for it.
STEP_THREADS = 1

Outcome_co = TypeVar("Outcome_co", covariant=True)


class Step(Protocol[Outcome_co]):
    """A request, and the copy of a group to which it is applied."""

    def apply(self) -> Outcome_co:
        """Any thread."""


class LongSteps:
    """Event loop thread only."""

    def __init__(self, executor: Executor) -> None:
        """`executor` has STEP_THREADS threads, and ends with `close`."""
        self._executor = executor
        # Groups with a step in the thread. Done when the step has been applied, or has failed.
        self._running: dict[str, asyncio.Future[None]] = {}

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def waited_for(self, group_id: str) -> bool:
        """Return when the group's step has ended. False at once without one."""
        running = self._running.get(group_id)
        if running is None:
            return False
        await shared_result(running)
        return True

    async def applied(self, group_id: str, step: Step[Outcome_co]) -> Outcome_co:
        """As `Step.apply`. The group has no other step. The caller must use the outcome at once,
        before others see the group."""
        loop = asyncio.get_running_loop()
        done = self._running[group_id] = loop.create_future()
        try:
            return await loop.run_in_executor(self._executor, step.apply)
        finally:
            del self._running[group_id]
            done.set_result(None)
