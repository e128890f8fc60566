"""Old import paths that docs/plugins.md gave to users still work (docs/decisions/0096)."""

from __future__ import annotations

import importlib

import pytest

from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache


def test_old_name_of_the_cache_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="state.cache"):
        old = importlib.import_module("isotherm.remote.metadata.cache")
    assert old.RemoteLogMetadataCache is RemoteLogMetadataCache
