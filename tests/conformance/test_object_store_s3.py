"""ObjectStoreRemoteStorageManager against a real S3 server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.errors import RemoteStorageError
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.conformance.fills_buffers import FillsBuffersConformance
from isotherm.testing.conformance.remote_storage import (
    FolderAccess,
    RemoteStorageManagerConformance,
    StoreUnderTest,
    copied,
)
from isotherm.testing.segment_files import SegmentMaker
from tests.support.bucket_inventory import read_inventory
from tests.support.s3_server import S3Server, find_versitygw

PART_SIZE = "5242880"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    binary = find_versitygw()
    if binary is None:
        pytest.skip("versitygw is not there: scripts/s3-server.sh install, or set VERSITYGW")
    with S3Server(binary, tmp_path_factory.mktemp("s3") / "buckets") as running:
        yield running


prefixes = itertools.count()


def store_under_test(server: S3Server, **config: str) -> StoreUnderTest:
    """A store with its own prefix in the shared bucket."""
    prefix = f"test-{next(prefixes)}"
    url = f"{server.config['url']}/{prefix}"
    settings = ObjectStoreSettings.from_config(
        {**server.config, "upload.part.size": PART_SIZE, **config, "url": url}
    )
    folder = server.bucket_folder / prefix
    folder.mkdir()
    return StoreUnderTest(ObjectStoreRemoteStorageManager(settings), FolderAccess(folder))


class TestS3AivenLayout(FillsBuffersConformance, RemoteStorageManagerConformance):
    # The server keeps objects as files, and a file name has at most 255 bytes.
    topic_length_max = 220

    @pytest.fixture
    def store(self, server: S3Server) -> StoreUnderTest:
        return store_under_test(server)


class TestS3LocalTieredStorageLayout(FillsBuffersConformance, RemoteStorageManagerConformance):
    topic_length_max = 220

    @pytest.fixture
    def store(self, server: S3Server) -> StoreUnderTest:
        return store_under_test(server, layout="local-tiered-storage")


def test_inventory_reads_the_bucket_back(server: S3Server, tmp_path: Path) -> None:
    store = store_under_test(server)
    maker = SegmentMaker(tmp_path)
    expected = [copied(store, maker.segment(start_offset=number)) for number in range(3)]
    settings = ObjectStoreSettings.from_config(
        {**server.config, "url": f"{server.config['url']}/test-{next(prefixes) - 1}"}
    )
    inventory = read_inventory(open_for_reading(settings), settings.create_layout())
    found = {metadata.segment_id for metadata in inventory.segments}
    assert found == {metadata.segment_id for metadata in expected}


@pytest.mark.parametrize(
    "change",
    [
        {"url": "s3://no-such-bucket"},
        {"aws_secret_access_key": "wrong"},
        {"s3_endpoint_url": "http://127.0.0.1:1", "retries": 0},
    ],
)
def test_store_that_cannot_be_used_is_a_retriable_error(
    server: S3Server, tmp_path: Path, change: dict[str, object]
) -> None:
    """Reads and deletions are retriable too: a missing bucket does not prove that an object is
    missing.
    """
    settings = replace(ObjectStoreSettings.from_config(server.config), **change)
    manager = ObjectStoreRemoteStorageManager(settings)
    segment = SegmentMaker(tmp_path).segment()
    for call in (
        lambda: manager.copy_log_segment_data(segment.metadata, segment.data),
        lambda: manager.fetch_log_segment(segment.metadata, 0),
        lambda: manager.delete_log_segment_data(segment.metadata),
    ):
        with pytest.raises(RemoteStorageError):
            call()
