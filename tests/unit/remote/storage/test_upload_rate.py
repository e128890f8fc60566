"""upload.rate.limit.bytes.per.second, on a simulated clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.errors import ConfigError
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.sim_clock import SimClock

MIB = 1 << 20


@pytest.mark.parametrize("kind", ["bytes", "file", "pieces"])
def test_uploads_take_as_long_as_the_limit_says_and_arrive_whole(tmp_path: Path, kind: str) -> None:
    settings = ObjectStoreSettings.from_config(
        {
            "url": (tmp_path / "bucket").as_uri(),
            "upload.rate.limit.bytes.per.second": str(MIB),
        }
    )
    clock = SimClock(auto_advance=True)
    client = ObjectClient(settings, open_object_store(settings, create_folder=True), clock)
    content = bytes(range(256)) * (6 * MIB // 256)
    source = tmp_path / "source"
    source.write_bytes(content)
    given = {"bytes": content, "file": source, "pieces": iter([content[:MIB], content[MIB:]])}[kind]
    client.put("a", given)
    # The first second's bytes are free, because the rate was unused before, and nothing waits after
    # the last piece.
    assert clock.monotonic_s() == pytest.approx(5 - 0.25, abs=0.3)
    assert client.get("a", len(content)) == content


def test_empty_object_is_uploaded_under_a_limit(tmp_path: Path) -> None:
    settings = ObjectStoreSettings.from_config(
        {"url": (tmp_path / "bucket").as_uri(), "upload.rate.limit.bytes.per.second": str(MIB)}
    )
    client = ObjectClient(settings, open_object_store(settings, create_folder=True), SimClock())
    client.put("a", b"")
    assert client.get("a", 10) == b""


@pytest.mark.parametrize("limit", ["1048575", "1000000001"])
def test_limit_outside_the_plugins_bounds_is_refused(limit: str) -> None:
    with pytest.raises(ConfigError, match=r"upload\.rate\.limit"):
        ObjectStoreSettings.from_config(
            {"url": "memory://", "upload.rate.limit.bytes.per.second": limit}
        )
