"""What the remote tier's bytes cost a month, by list prices of storage alone.

The prices are dollars for a GiB and month, of the first and dearest step of each list: Amazon S3 in
us-east-1, Google Cloud Storage in us-central1, Azure Blob Storage in East US with local redundancy.
Requests, transfer, indexes and manifests are not in them. A file of one's own may have all steps of a list:

    [[storage]]
    up_to_gib = 51200
    price = 0.023

    [[storage]]
    price = 0.022
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
PRICES = {
    "s3-standard": 0.023,
    "s3-standard-ia": 0.0125,
    "s3-glacier-instant": 0.004,
    "gcs-standard": 0.020,
    "azure-hot": 0.0184,
}
_FILE_SUFFIX = ".toml"


@dataclass(frozen=True, slots=True)
class PriceList:
    """Pairs of a step's end in GiB, the last infinite, and its dollars for a GiB and month."""

    steps: tuple[tuple[float, float], ...]

    def mean_price(self, size_in_bytes: int) -> float:
        """Dollars for a GiB and month, of so many bytes together; the first step's for none."""
        left, begin, dollars = size_in_bytes / GIB, 0.0, 0.0
        if not left:
            return self.steps[0][1]
        for end, price in self.steps:
            part = min(left, end - begin)
            dollars += part * price
            left, begin = left - part, end
        return dollars / (size_in_bytes / GIB)


def price_list(text: str) -> PriceList:
    """From a name of PRICES, a number, or the path of a file that ends in .toml. Raises ConfigError."""
    if text.endswith(_FILE_SUFFIX):
        return _price_file(Path(text))
    if text in PRICES:
        return PriceList(((math.inf, PRICES[text]),))
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
        _price_step(path, each, is_last=number == len(listed))
        for number, each in enumerate(listed, 1)
    )
    ends = [0.0, *(end for end, _ in steps)]
    if any(end <= before for before, end in itertools.pairwise(ends)):
        raise ConfigError(f"the steps of a price list do not rise file={path} key=up_to_gib")
    return PriceList(steps)


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
