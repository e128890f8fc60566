"""A check at the end of every test of the tier: its buckets are complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bucket_scrub import scrub
from tests.support.tiered_partition import TieredPartition


@pytest.fixture(autouse=True)
def scrubbed_buckets(tmp_path: Path) -> Iterator[None]:
    """Scrubs the bucket of every TieredPartition of a test; for the conftest of tests of the tier.

    A test that damages a bucket on purpose sets `tiered.damage_declared = "what"`. The argument
    makes pytest remove the test's folder, where its bucket lies, after the check.
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
