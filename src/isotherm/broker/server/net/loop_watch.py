"""Notes what holds up the event loop, on which no request should take more than 50 ms
(docs/decisions/0021).

A step is what the loop does without a break for one callback. The steps of a request are timed
where they run, so that the request is known. Any other step is noticed by a timer that fires late.
Marked on the event loop thread only; collected on any thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

# A shorter step is not noted.
SLOW_STEP_S = 0.1
# A step of this duration is logged. So there is at most one such line in this time.
LOGGED_STEP_S = 1.0
# Upper bounds of the histogram in seconds, from SLOW_STEP_S on. Longer steps are in the bucket of
# infinity.
STEP_BUCKETS_S = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)

# How often the timer fires. A step that is no request's is noted if it holds the timer up for
# SLOW_STEP_S.
BEAT_S = 0.5
# The weight of the newest beat in the average of the idle share: that of the last minute.
IDLE_WEIGHT = BEAT_S / 60

OTHER = "other"


class LoopWatch(Collector):
    """`start` and `stop` belong to the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts: dict[str, list[int]] = {}
        self._sums_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Time of noted steps since the last beat, which the beat's lateness contains.
        self._noted_s = 0.0
        self._busy_s = 0.0
        self._beat_s = 0.0
        self._idle_share = 1.0

    def start(self) -> None:
        self._busy_s, self._beat_s = time.thread_time(), self._loop.time()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def step(self, duration_s: float, request: str, size: int, client: str, user: str) -> None:
        """Note a step of a request that took SLOW_STEP_S or more.

        `size` is that of its frame in bytes.
        """
        self._note(duration_s, request)
        self._noted_s += duration_s
        if duration_s >= LOGGED_STEP_S:
            logger.warning(
                "a request blocked the event loop duration_ms=%d request=%s size=%d client=%s"
                " user=%s",
                duration_s * 1000,
                request,
                size,
                client,
                user,
            )

    def _beat(self) -> None:
        now_s, busy_s = self._loop.time(), time.thread_time()
        interval_s = now_s - self._beat_s
        late_s = interval_s - BEAT_S - self._noted_s
        if late_s >= SLOW_STEP_S:
            self._note(late_s, OTHER)
            if late_s >= LOGGED_STEP_S:
                logger.warning(
                    "the event loop was blocked duration_ms=%d busy_ms=%d",
                    late_s * 1000,
                    (busy_s - self._busy_s) * 1000,
                )
        idle = max(0.0, 1 - (busy_s - self._busy_s) / interval_s)
        self._idle_share += (idle - self._idle_share) * IDLE_WEIGHT
        self._busy_s, self._beat_s, self._noted_s = busy_s, now_s, 0.0
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _note(self, duration_s: float, request: str) -> None:
        counts = self._counts.setdefault(request, [0] * (len(STEP_BUCKETS_S) + 1))
        counts[bisect_left(STEP_BUCKETS_S, duration_s)] += 1
        self._sums_s[request] = self._sums_s.get(request, 0.0) + duration_s

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
            "Kafka's RequestHandlerAvgIdlePercent: share of the last minute in which the event loop"
            " had nothing to do.",
            value=self._idle_share,
        )
        steps = HistogramMetricFamily(
            "isotherm_event_loop_slow_step_seconds",
            "Steps of the event loop that took 0.1 s or more, by the request.",
            labels=("request",),
        )
        bounds = [*(str(bound) for bound in STEP_BUCKETS_S), "+Inf"]
        for request, counts in list(self._counts.items()):
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            steps.add_metric((request,), buckets, self._sums_s[request])
        yield steps
