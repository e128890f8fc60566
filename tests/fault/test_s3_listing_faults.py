"""Listings with faulty pages: the caller sees the whole bucket, or a retriable error.

Row 12 of the catalogue: a lost page, keys shown twice, a continuation that starts over; and an
error under status 200, which a client of S3 takes for the end of a listing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.errors import RemoteStorageError, RetriableError
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.segment_files import SegmentMaker
from tests.support.bucket_inventory import Inventory, read_inventory
from tests.support.s3_listing import ListingFault
from tests.support.s3_stub import S3Stub, WireFault

TOPICS = ("a", "b")
SEGMENTS = 2
PAGE_SIZE = 3
FAULTS = [
    *ListingFault,
    WireFault.ERROR_IN_200,
    WireFault.RESET_BEFORE,
    WireFault.LOST_REPLY,
    WireFault.SLOW_DOWN,
    WireFault.SHORT_BODY,
    WireFault.BIT_FLIP,
]


@pytest.fixture
def stub() -> Iterator[S3Stub]:
    with S3Stub() as running:
        running.list_page_size = PAGE_SIZE
        yield running


@pytest.fixture
def copied(tmp_path: Path, stub: S3Stub) -> list[RemoteLogSegmentMetadata]:
    manager = ObjectStoreRemoteStorageManager(ObjectStoreSettings.from_config(stub.config))
    maker = SegmentMaker(tmp_path)
    segments = []
    for topic in TOPICS:
        partition = maker.partition(topic)
        for number in range(SEGMENTS):
            segment = maker.segment(partition, start_offset=number * 10)
            manager.copy_log_segment_data(segment.metadata, segment.data)
            segments.append(
                replace(segment.metadata, state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
            )
    stub.requests.clear()
    return segments


def inventory(stub: S3Stub, **config: str) -> Inventory:
    settings = ObjectStoreSettings.from_config({**stub.config, **config})
    return read_inventory(open_for_reading(settings), settings.create_layout())


def pages_asked_for(stub: S3Stub) -> int:
    return sum(key == "" for _, key in stub.requests)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.lower())
def test_bucket_is_seen_whole_whichever_page_of_a_listing_goes_wrong(
    stub: S3Stub, copied: list[RemoteLogSegmentMetadata], fault: ListingFault | WireFault
) -> None:
    """Each page in turn is faulty, in listings of folders and of objects."""
    whole = Inventory(segments=copied)
    assert inventory(stub) == whole
    outcomes = set()
    for page in range(pages_asked_for(stub)):
        stub.fail(fault, "GET", query="list-type", skipped=page, times=1)
        try:
            assert inventory(stub) == whole, page
            outcomes.add("whole")
        except RetriableError:
            outcomes.add("again")
        stub.heal()
    assert len(stub.faults) > 2 * len(TOPICS)
    announces_itself = isinstance(fault, WireFault) and fault is not WireFault.ERROR_IN_200
    assert ("again" in outcomes) == announces_itself


def test_listing_that_fails_for_a_moment_is_asked_for_again(
    stub: S3Stub, copied: list[RemoteLogSegmentMetadata]
) -> None:
    stub.fail(WireFault.INTERNAL_ERROR, "GET", query="list-type", skipped=3, times=2)
    assert inventory(stub, retries="3") == Inventory(segments=copied)
    assert len(stub.faults) == 2


def test_listing_that_never_gets_on_is_an_error_instead_of_endless(
    stub: S3Stub, copied: list[RemoteLogSegmentMetadata]
) -> None:
    client = open_for_reading(ObjectStoreSettings.from_config(stub.config))
    stub.fail(ListingFault.STARTS_OVER, "GET", query="list-type")
    topic_folder = next(iter(stub.objects())).partition("/")[0] + "/"
    with pytest.raises(RemoteStorageError, match=rf"listing repeats itself folder={topic_folder}"):
        list(client.list_objects(topic_folder))
