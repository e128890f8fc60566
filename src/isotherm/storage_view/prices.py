"""Estimates the monthly cost of the remote tier, by list prices of storage and requests.

The prices are in dollars per GiB and month, and per thousand requests. They are those of the first
and highest step of each list: Amazon S3 in us-east-1, Google Cloud Storage in us-central1, Azure
Blob Storage in East US with local redundancy. They do not cover transfer, indexes and manifests. A
user's own file may have all steps of a list:

    [[storage]]
    up_to_gib = 51200
    price = 0.023

    [[storage]]
    price = 0.022

    [requests]
    put_per_1000 = 0.005
    get_per_1000 = 0.0004
"""

from __future__ import annotations

import itertools
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.errors import ConfigError

GIB = 1024**3
DEFAULT_PRICE = "s3-standard"


@dataclass(frozen=True, slots=True)
class RequestPrices:
    put_per_1000: float
    get_per_1000: float


PRICES = {
    "s3-standard": (0.023, RequestPrices(0.005, 0.0004)),
    "s3-standard-ia": (0.0125, RequestPrices(0.01, 0.001)),
    "s3-glacier-instant": (0.004, RequestPrices(0.02, 0.01)),
    "gcs-standard": (0.020, RequestPrices(0.005, 0.0004)),
    "azure-hot": (0.0184, RequestPrices(0.005, 0.0004)),
}
_FILE_SUFFIX = ".toml"


@dataclass(frozen=True, slots=True)
class PriceList:
    """`steps` are pairs of a step's end in GiB and its price in dollars per GiB and month. The last
    end is infinite. `requests` is None if the list has no prices for them."""

    steps: tuple[tuple[float, float], ...]
    requests: RequestPrices | None = None

    def mean_price(self, size_in_bytes: int) -> float:
        """The mean price of `size_in_bytes`, in dollars per GiB and month. For 0 bytes it is that
        of the first step."""
        left, begin, dollars = size_in_bytes / GIB, 0.0, 0.0
        if not left:
            return self.steps[0][1]
        for end, price in self.steps:
            part = min(left, end - begin)
            dollars += part * price
            left, begin = left - part, end
        return dollars / (size_in_bytes / GIB)


def price_list(text: str) -> PriceList:
    """The price list for a name in PRICES, a number, or the path of a .toml file.

    Raises ConfigError.
    """
    if text.endswith(_FILE_SUFFIX):
        return _price_file(Path(text))
    if text in PRICES:
        storage, requests = PRICES[text]
        return PriceList(((math.inf, storage),), requests)
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < math.inf:
        raise ConfigError(
            f"no price of storage value={text!r} expected_one_of={','.join(PRICES)}"
            " hint='or dollars for a GiB and month, such as 0.023, or a file such as prices.toml'"
        )
    return PriceList(((math.inf, price),))


def _price_file(path: Path) -> PriceList:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"a price list cannot be read file={path} reason={error}") from error
    listed = content.get("storage")
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"a price list has no step file={path} hint='[[storage]] price = 0.023'")
    steps = tuple(
        _price_step(path, step, is_last=number == len(listed))
        for number, step in enumerate(listed, 1)
    )
    ends = [0.0, *(end for end, _ in steps)]
    if any(end <= before for before, end in itertools.pairwise(ends)):
        raise ConfigError(f"the steps of a price list do not rise file={path} key=up_to_gib")
    return PriceList(steps, _request_prices(path, content.get("requests")))


def _request_prices(path: Path, listed: Any) -> RequestPrices | None:
    if listed is None:
        return None
    names = ("put_per_1000", "get_per_1000")
    prices = [listed.get(name) if isinstance(listed, dict) else None for name in names]
    if not all(isinstance(price, int | float) and 0 <= price < math.inf for price in prices):
        raise ConfigError(
            f"requests in a price list need numbers file={path} key={','.join(names)}"
        )
    return RequestPrices(*(float(price or 0) for price in prices))


def _price_step(path: Path, step: Any, *, is_last: bool) -> tuple[float, float]:
    end = step.get("up_to_gib", math.inf) if isinstance(step, dict) else None
    price = step.get("price") if isinstance(step, dict) else None
    if not (isinstance(price, int | float) and isinstance(end, int | float) and price >= 0):
        raise ConfigError(f"a step of a price list needs numbers file={path} key=price,up_to_gib")
    if is_last != (end == math.inf):
        raise ConfigError(
            f"the last step of a price list, and no other, has no end file={path} key=up_to_gib"
        )
    return float(end), float(price)


def monthly_cost(size_in_bytes: int, price: float) -> float:
    return size_in_bytes / GIB * price
