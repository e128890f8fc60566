"""A check at the end of every test of the tier: its buckets are complete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bucket_scrub import scrub
from tests.support.tiered_partition import TieredPartition


@pytest.fixture(autouse=True)
def scrubbed_buckets() -> Iterator[None]:
    """Scrubs the bucket of every TieredPartition of a test; for the conftest of tests of the tier.

    A test that damages a bucket on purpose sets `tiered.damage_declared = "what"`.
    """
    TieredPartition.made.clear()
    yield
    made = list(TieredPartition.made)
    TieredPartition.made.clear()
    for each in made:
        if not each.damage_declared:
            values = [record.value for record in each.metadata_topic.records()]
            findings = scrub(each.objects(), values)
            assert findings == [], findings
