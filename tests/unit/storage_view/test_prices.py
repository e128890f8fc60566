"""Prices by name, by number, and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.errors import ConfigError
from isotherm.storage_view.prices import GIB, RequestPrices, monthly_cost, price_list

STEPS = """
[[storage]]
up_to_gib = 100
price = 0.03

[[storage]]
up_to_gib = 300
price = 0.02

[[storage]]
price = 0.01
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prices.toml"


@pytest.mark.parametrize(
    ("gib", "dollars"), [(0, 0), (50, 1.5), (100, 3), (200, 5), (300, 7), (1300, 17)]
)
def test_steps_are_added_up(file: Path, gib: int, dollars: float) -> None:
    file.write_text(STEPS)
    price = price_list(str(file)).mean_price(gib * GIB)
    assert monthly_cost(gib * GIB, price) == pytest.approx(dollars)


def test_name_and_number_have_one_step() -> None:
    assert price_list("s3-standard").mean_price(100 * GIB) == 0.023
    assert price_list("0.01").mean_price(0) == 0.01


def test_requests_have_prices_in_a_list_or_a_file(file: Path) -> None:
    assert price_list("s3-standard").requests == RequestPrices(0.005, 0.0004)
    assert price_list("0.01").requests is None
    file.write_text(STEPS)
    assert price_list(str(file)).requests is None
    file.write_text(STEPS + "[requests]\nput_per_1000 = 1\nget_per_1000 = 0.5\n")
    assert price_list(str(file)).requests == RequestPrices(1, 0.5)


@pytest.mark.parametrize("text", ["cheap", "-1", "nan", "inf", "/no/such/file.toml"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        price_list(text)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "storage = 3",
        "[[storage]]\nprice = 'low'",
        "[[storage]]\nprice = 1\n[requests]\nput_per_1000 = 1",
        "requests = 7\n[[storage]]\nprice = 1",
        "[[storage]]\nprice = -1",
        "[[storage]]\nprice = nan",
        "[[storage]]\nprice = 1\nup_to_gib = 5",
        "[[storage]]\nprice = 1\n[[storage]]\nprice = 2",
        STEPS.replace("100", "400"),
        "not toml",
    ],
)
def test_file_that_is_no_price_list_is_refused_by_name(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"prices\.toml"):
        price_list(str(file))
