from __future__ import annotations

import pytest

from isotherm.broker.remote_tier import load_storage_manager
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.errors import ConfigError
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager


def test_storage_manager_is_the_object_store_unless_told_otherwise() -> None:
    config = RemoteLogManagerConfig(rsm_config={"url": "memory://"})
    storage = load_storage_manager(config)
    assert isinstance(storage, ObjectStoreRemoteStorageManager)
    storage.close()


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "isotherm.remote.storage.object_store.NoSuchClass",
        "pathlib.Path",
        "NoModule",
    ],
)
def test_storage_manager_that_cannot_be_loaded_is_refused_naming_the_key(name: str) -> None:
    config = RemoteLogManagerConfig(remote_log_storage_manager_class_name=name)
    with pytest.raises(
        ConfigError, match=r"key=remote\.log\.storage\.manager\.class\.name"
    ) as caught:
        load_storage_manager(config)
    assert name in str(caught.value)
