"""Reads the brokers' errors of the last hour, and their traffic with the remote tier, from their
metrics. Without an open page no request is sent."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from isotherm.client.https_exchange import https_answer
from isotherm.client.tls_contexts import https_context
from isotherm.clock import Clock
from isotherm.config.http_credentials import read_credentials
from isotherm.console.watched_cluster import Newest
from isotherm.errors import ConfigError
from isotherm.printable import without_passwords
from isotherm.storage_view.copy_signs import (
    CopyGauges,
    CopySigns,
    copy_signs,
    read_copy_gauges,
)
from isotherm.storage_view.in_flight import InFlight, in_flight_of_all, read_in_flight
from isotherm.storage_view.meter_counts import (
    ERRORS,
    HOUR_MS,
    CountsSeen,
    MeterHistory,
    read_meter_counts,
)
from isotherm.storage_view.rows import Row
from isotherm.storage_view.traffic import Traffic, traffic_by_topic
from isotherm.types import TimestampMs

READS_AT_ONCE = 8
ANSWER_SIZE_MAX = 64 * 1024 * 1024
ANSWER_TIMEOUT_S = 30.0
ROWS_MAX = 100
TRAFFIC_WINDOW_MS = 300_000


@dataclass(frozen=True, slots=True)
class MetricsAddresses:
    """The URLs of brokers' metrics, such as `http://broker:9404/metrics`. `authorization` is a
    header for all of them."""

    urls: Sequence[str]
    authorization: str | None = None


def metrics_addresses(urls: Sequence[str], login_file: str | None) -> MetricsAddresses:
    """Check the URLs, and read the login. Raises ConfigError for an invalid URL, and for a file
    that does not have exactly one name with its password."""
    for url in urls:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            # Pages show the address, and would show the password.
            hint = "write NAME:PASSWORD into the file of --metrics-login"
            raise ConfigError(f"an address must not contain a password key=--metrics hint='{hint}'")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"expected http://HOST:PORT/metrics key=--metrics value={url}")
    if login_file is None:
        return MetricsAddresses(urls)
    credentials = read_credentials(login_file, "--metrics-login")
    if len(credentials) != 1:
        raise ConfigError(f"one login is expected key=--metrics-login value={login_file}")
    ((name, password),) = credentials.items()
    return MetricsAddresses(urls, "Basic " + base64.b64encode(name + b":" + password).decode())


@dataclass(frozen=True, slots=True)
class MetricsLook:
    """`errors` are those of the last hour. `traffic` by topic is the mean over some minutes,
    `hourly_traffic`, from which costs are computed, over the hour. Both are None before the second
    reading. `since_ms` is the time at which the hour's counts begin. `copy_signs` by topic are
    those of the last minutes. `in_flight` is that of share partitions whose leaders have
    answered."""

    errors: Row
    traffic: Mapping[str, Traffic] | None
    hourly_traffic: Mapping[str, Traffic] | None
    since_ms: TimestampMs | None
    copy_signs: Mapping[str, CopySigns] = field(default_factory=dict)
    in_flight: InFlight = field(default_factory=dict)


class WatchedMetrics:
    """The newest metrics of all brokers. The first reading of a broker counts nothing, because
    later ones are compared with it. Thread-safe."""

    def __init__(self, addresses: MetricsAddresses, clock: Clock, interval_s: float) -> None:
        self._addresses = addresses
        self._clock = clock
        self._histories = {url: MeterHistory() for url in addresses.urls}
        self._gauges: dict[str, CopyGauges] = {}
        self._in_flight: dict[str, InFlight] = {}
        self._context = https_context()
        self._executor = ThreadPoolExecutor(READS_AT_ONCE, "console-metrics")
        self._newest = Newest(self._read, threading.Lock(), clock, interval_s)

    def look(self) -> MetricsLook | None:
        """The newest metrics. None without addresses."""
        return self._newest.look().content if self._addresses.urls else None

    def close(self) -> None:
        self._executor.shutdown()

    def _read(self) -> MetricsLook:
        results = list(self._executor.map(self._note, self._addresses.urls))
        failed = [result for result in results if result is not None]
        now_ms = self._clock.now_ms()
        hour = _all_seen(self._histories, HOUR_MS, now_ms)
        minutes = _all_seen(self._histories, TRAFFIC_WINDOW_MS, now_ms)
        since_ms = min((counts.since_ms for counts in hour.values()), default=None)
        return MetricsLook(
            _errors_row(hour, since_ms, failed),
            traffic_by_topic(minutes.values()),
            traffic_by_topic(hour.values()),
            since_ms,
            copy_signs(minutes.values(), self._gauges.values(), is_whole=not failed),
            in_flight_of_all(self._in_flight.values()),
        )

    def _note(self, url: str) -> Row | None:
        """Read the metrics of one broker. Returns the reason if they cannot be read, else None."""
        authorization = self._addresses.authorization
        headers = {} if authorization is None else {"Authorization": authorization}
        try:
            text = https_answer(
                url,
                self._context,
                headers=headers,
                size_max=ANSWER_SIZE_MAX,
                timeout_s=ANSWER_TIMEOUT_S,
            )
            counts, gauges = read_meter_counts(text), read_copy_gauges(text)
            in_flight = read_in_flight(text)
        except (OSError, ValueError) as error:
            self._gauges.pop(url, None)
            self._in_flight.pop(url, None)
            return {"url": without_passwords(url), "reason": without_passwords(str(error))}
        self._histories[url].note(counts, self._clock.now_ms())
        self._gauges[url] = gauges
        self._in_flight[url] = in_flight
        return None


def _all_seen(
    histories: Mapping[str, MeterHistory], window_ms: int, now_ms: TimestampMs
) -> dict[str, CountsSeen]:
    """The counts in the window of each broker that has answered in it."""
    seen = {url: history.seen(window_ms, now_ms) for url, history in histories.items()}
    return {url: counts for url, counts in seen.items() if counts is not None}


def _errors_row(
    seen: Mapping[str, CountsSeen], since_ms: TimestampMs | None, unanswered: list[Row]
) -> Row:
    """The row of errors: their `total` since `since_ms`, the most frequent ones as `rows`, and the
    addresses that do not answer now."""
    counts = Counter(
        {
            (url, meter, topic): count
            for url, counts_seen in seen.items()
            for (meter, topic), count in counts_seen.counts.items()
            if meter in ERRORS
        }
    )
    rows = [
        {
            "broker": urlsplit(url).netloc.rpartition("@")[2],
            "errors": meter,
            "topic": topic,
            "count": count,
        }
        for (url, meter, topic), count in counts.most_common()
        if topic
    ]
    return {
        "since_ms": since_ms,
        "total": sum(count for (_, _, topic), count in counts.items() if not topic),
        "rows": rows[:ROWS_MAX],
        "unanswered": unanswered,
    }
