"""Settings of an object store: keys, errors, pickling, and secrets that are not shown."""

from __future__ import annotations

import pickle

import pytest

from isotherm.errors import ConfigError, UnknownConfigError
from isotherm.remote.storage.layout.aiven import AivenLayout
from isotherm.remote.storage.layout.local_tiered_storage import LocalTieredStorageLayout
from isotherm.remote.storage.settings import ObjectStoreSettings

SECRET = "very-secret-value"


def test_settings_read_from_keys() -> None:
    settings = ObjectStoreSettings.from_config(
        {
            "url": "s3://bucket/some/prefix",
            "key.prefix": "tier/",
            "chunk.size": "1048576",
            "s3.endpoint.url": "http://localhost:7070",
            "s3.path.style.access.enabled": "false",
            "aws.access.key.id": "me",
        }
    )
    assert settings.chunk_size == 1_048_576
    assert settings.key_prefix == "tier/"
    assert settings.s3_path_style_access_enabled is False
    assert isinstance(settings.create_layout(), AivenLayout)


def test_settings_survive_pickling() -> None:
    settings = ObjectStoreSettings.from_config({"url": "memory://", "chunk.size": "17"})
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))


def test_secrets_are_not_shown() -> None:
    secrets = ("aws.secret.access.key", "aws.session.token", "azure.account.key", "azure.sas.token")
    settings = ObjectStoreSettings.from_config(
        {"url": "s3://b", **dict.fromkeys(secrets, SECRET), "aws.access.key.id": "me"}
    )
    assert SECRET not in repr(settings)
    assert "aws_access_key_id='me'" in repr(settings)


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UnknownConfigError, match=r"key=chunk\.sise nearest=chunk\.size"):
        ObjectStoreSettings.from_config({"url": "memory://", "chunk.sise": "1"})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "key=url"),
        ({"url": ""}, "key=url"),
        ({"url": "/a/folder"}, "no known kind of store"),
        ({"url": "ftp://host/x"}, "no known kind of store"),
        ({"url": "memory://", "layout": "parquet"}, "configuration layout: "),
        ({"url": "memory://", "chunk.size": "0"}, r"configuration chunk\.size: "),
        ({"url": "memory://", "chunk.size": "much"}, r"configuration chunk\.size: "),
        ({"url": "memory://", "upload.part.size": "1024"}, r"configuration upload\.part\.size: "),
        ({"url": "memory://", "key.prefix": "/absolute/"}, r"configuration key\.prefix: "),
        ({"url": "memory://", "key.prefix": "a//b/"}, r"configuration key\.prefix: "),
        ({"url": "memory://", "key.prefix": "../up/"}, r"configuration key\.prefix: "),
        ({"url": "memory://", "s3.path.style.access.enabled": "maybe"}, "path.style"),
    ],
)
def test_impossible_value_names_the_key(config: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ObjectStoreSettings.from_config(config)


def test_local_tiered_storage_lies_in_kafkas_folder_unless_reported_otherwise() -> None:
    layout = ObjectStoreSettings.from_config(
        {"url": "file:///tmp/x", "layout": "local-tiered-storage"}
    ).create_layout()
    assert isinstance(layout, LocalTieredStorageLayout)
    assert layout.root_directory == "kafka-tiered-storage/"
    bare = {"url": "file:///tmp/x", "layout": "local-tiered-storage", "key.prefix": ""}
    assert ObjectStoreSettings.from_config(bare).create_layout().root_directory == ""
