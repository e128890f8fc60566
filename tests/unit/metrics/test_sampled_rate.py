"""Rates with Kafka's arithmetic: the expected numbers follow from Rate, SampledStat and
QuotaUtils."""

from __future__ import annotations

import pytest

from isotherm.metrics.sampled_rate import SampledRate, SampledValues


def test_rate_of_the_first_window_counts_empty_ones_before_it() -> None:
    rate = SampledRate(1000, 11)
    rate.record(1000, 0)
    assert rate.measure(0) == 100  # over 10 s: ten full windows; the current one adds 0 ms
    assert rate.measure(500) == pytest.approx(1000 / 10.5)
    assert rate.measure(1000) == 100  # one full window, nine empty ones


def test_windows_that_are_too_old_fall_out() -> None:
    rate = SampledRate(1000, 11)
    rate.record(1000, 0)
    rate.record(500, 10_999)
    assert rate.measure(10_999) == pytest.approx(1500 / 10.999)
    assert rate.measure(11_000) == pytest.approx(500 / 10.001)
    assert rate.measure(30_000) == 0


def test_values_of_one_window_are_added_up() -> None:
    rate = SampledRate(1000, 3)
    for now_ms in (0, 400, 999):
        rate.record(10, now_ms)
    rate.record(5, 1000)
    assert rate.measure(1000) == pytest.approx(35 * 1000 / 2000)


def test_throttle_brings_the_rate_down_to_the_limit() -> None:
    """After the throttle time, the same amount over the longer period is exactly the limit."""
    rate = SampledRate(1000, 11)
    rate.record(2000, 0)
    assert rate.throttle_ms(200, 0) == 0
    assert rate.throttle_ms(100, 0) == 10_000  # (200 - 100) / 100 of ten seconds
    assert rate.throttle_ms(160, 0) == 2_500


def test_average_and_largest_are_those_of_the_last_windows() -> None:
    values = SampledValues(window_ms=1000, window_count=2)
    assert (values.average(0), values.largest(0)) == (0, 0)
    values.record(10, 0)
    values.record(30, 500)
    values.record(5, 1000)
    assert (values.average(1000), values.largest(1000)) == (15, 30)
    assert (values.average(2499), values.largest(2499)) == (15, 30)
    assert (values.average(2500), values.largest(2500)) == (5, 5)
    assert values.largest(3000) == 0


def test_window_counts_whole_until_its_last_event_is_too_old() -> None:
    rate = SampledRate(1000, 3)
    rate.record(10, 0)
    rate.record(10, 900)
    rate.record(10, 2000)
    assert rate.measure(3899) == pytest.approx(30 * 1000 / 3899)
    assert rate.measure(3900) == pytest.approx(10 * 1000 / 2900)
