"""What the remote tier's bytes cost a month, by list prices of storage alone.

The prices are dollars for a GiB and month, of the first and dearest step of each list: Amazon S3 in
us-east-1, Google Cloud Storage in us-central1, Azure Blob Storage in East US with local redundancy.
Requests, transfer, indexes and manifests are not in them.
"""

from __future__ import annotations

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


def price_of(text: str) -> float:
    """Dollars for a GiB and month, from a name of PRICES or a number. Raises ConfigError."""
    if text in PRICES:
        return PRICES[text]
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < float("inf"):
        raise ConfigError(
            f"no price of storage value={text!r} expected_one_of={','.join(PRICES)}"
            " hint='or dollars for a GiB and month, such as 0.023'"
        )
    return price


def monthly_cost(size_in_bytes: int, price: float) -> float:
    return size_in_bytes / GIB * price
