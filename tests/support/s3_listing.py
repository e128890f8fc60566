"""The pages of an S3 listing (ListObjectsV2), and their faults."""

from __future__ import annotations

import enum
import html
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class ListingFault(enum.Enum):
    """Faults of a page. A client that trusts the page continues where it points to."""

    LOST = "the page's keys are left out"
    CUT = "the listing ends with this page although it does not"
    STARTS_OVER = "the first page again, whichever was asked for"
    TWICE = "every key of the page twice"


class _Page(NamedTuple):
    names: list[str]
    is_truncated: bool


def listing_page(
    sizes: Mapping[str, int],
    *,
    prefix: str,
    delimiter: str,
    after: str,
    page_size: int,
    fault: ListingFault | None,
) -> str:
    """The body of the answer. `after` is the continuation token, the last name of a page."""
    if fault is ListingFault.STARTS_OVER:
        after = ""
    page = _page_of(_rolled_up(sizes, prefix, delimiter), after, page_size)
    shown = page.names
    if fault is ListingFault.LOST:
        shown = []
    if fault is ListingFault.TWICE:
        shown = [name for name in shown for _ in range(2)]
    is_truncated = page.is_truncated and fault is not ListingFault.CUT
    token = page.names[-1] if page.names else after
    entries = "".join(_entry(name, sizes.get(name)) for name in shown)
    continuation = f"<NextContinuationToken>{html.escape(token)}</NextContinuationToken>"
    return (
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<KeyCount>{len(shown)}</KeyCount><IsTruncated>{str(is_truncated).lower()}</IsTruncated>"
        f"{continuation if is_truncated else ''}{entries}</ListBucketResult>"
    )


def _rolled_up(keys: Iterable[str], prefix: str, delimiter: str) -> list[str]:
    """The keys under `prefix` in order; those with a delimiter behind it as one common prefix."""
    names = set()
    for key in keys:
        if key.startswith(prefix):
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            names.add(prefix + head + found if found else key)
    return sorted(names)


def _page_of(names: list[str], after: str, page_size: int) -> _Page:
    left = [name for name in names if name > after]
    return _Page(left[:page_size], len(left) > page_size)


def _entry(name: str, size: int | None) -> str:
    if size is None:
        return f"<CommonPrefixes><Prefix>{html.escape(name)}</Prefix></CommonPrefixes>"
    return (
        f"<Contents><Key>{html.escape(name)}</Key><Size>{size}</Size>"
        "<LastModified>2022-01-01T00:00:00.000Z</LastModified><ETag>etag</ETag></Contents>"
    )
