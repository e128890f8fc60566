"""Settings of the object store: the `rsm.config.` keys of a broker, the `isotherm.` options of
Spark.

Settings of the Aiven plugin have its names. Credentials that are not set come from where the
store's own SDKs find them: environment, instance or pod identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from isotherm.config.definition import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    STRING,
    Check,
    any_of,
    at_least,
    between,
    key,
    one_of,
    optional,
    parse_fields,
)
from isotherm.config.security import is_secret
from isotherm.errors import ConfigError
from isotherm.printable import without_passwords
from isotherm.remote.storage.layout.aiven import AivenLayout
from isotherm.remote.storage.layout.aiven_custom_metadata import FIELDS
from isotherm.remote.storage.layout.local_tiered_storage import (
    DEFAULT_KEY_PREFIX,
    LocalTieredStorageLayout,
)
from isotherm.remote.storage.layout.names import AIVEN, LOCAL_TIERED_STORAGE
from isotherm.remote.storage.layout.segment_layout import Layout
from isotherm.remote.storage.transform.encryption import KeyPairFiles, KeyRing
from isotherm.remote.storage.transform.segment_transforms import (
    SegmentTransforms,
    TransformSettings,
)

URL_SCHEMES = ("file", "memory", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss")

_MIB = 1024 * 1024


def _is_key_prefix(prefix: str | None) -> bool:
    """Whether a prefix is valid. Stores without folders would accept more, but a local folder
    cannot distinguish such prefixes."""
    segments = (prefix or "").split("/")
    return not any(part in (".", "..") for part in segments) and not any(
        part == "" for part in segments[:-1]
    )


_KEY_PREFIX = Check(_is_key_prefix, "no empty, . or .. path segment and no leading slash")


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or above 65535
        return False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ObjectStoreSettings:
    """Plain values: hashable, and picklable for Spark's executors."""

    url: str = key(
        STRING,
        "",
        "Where segments are kept: file:///folder, s3://bucket/prefix, gs://bucket/prefix,"
        " az://container/prefix, or memory:// (one process, for tests).",
    )
    layout: str = key(
        STRING,
        AIVEN,
        "How objects are named and arranged: that of the Aiven plugin, or that of Apache Kafka's"
        " own LocalTieredStorage.",
        check=one_of(AIVEN, LOCAL_TIERED_STORAGE),
    )
    key_prefix: str | None = key(
        optional(STRING),
        None,
        "Prefix of every object key, taken literally, after the URL's path. Default: nothing, and"
        f" {DEFAULT_KEY_PREFIX} in the layout {LOCAL_TIERED_STORAGE}.",
        check=_KEY_PREFIX,
    )
    chunk_size: int = key(
        INT,
        4 * _MIB,
        "Size of the chunks that are transformed one by one, and unit of the chunk index.",
        check=between(1, 1_073_741_823),
    )
    upload_part_size: int = key(
        INT,
        5 * _MIB,
        "Larger objects are uploaded in parts of this size. A segment being copied takes about"
        " this times upload.concurrency of memory.",
        check=between(5 * _MIB, 512 * _MIB),
    )
    upload_concurrency: int = key(
        INT, 4, "Parts of one object uploaded at the same time.", check=between(1, 64)
    )
    upload_rate_limit_bytes_per_second: int | None = key(
        optional(INT),
        None,
        "Rate limit of all uploads of this process; none if not set.",
        check=Check(
            lambda value: value is None or _MIB <= value <= 1_000_000_000, "1 MiB to 1,000,000,000"
        ),
    )
    compression_enabled: bool = key(
        BOOLEAN, False, "Whether chunks are compressed with zstd (layout aiven only)."
    )
    compression_heuristic_enabled: bool = key(
        BOOLEAN,
        False,
        "Whether a segment is not compressed again if its first batch is compressed.",
    )
    encryption_enabled: bool = key(
        BOOLEAN,
        False,
        "Whether chunks and indexes are encrypted with AES-256-GCM (layout aiven only).",
    )
    encryption_key_pair_id: str | None = key(
        optional(STRING), None, "The key pair under which new segments are encrypted."
    )
    encryption_key_pairs: tuple[str, ...] = key(
        LIST,
        (),
        "Ids of the RSA key pairs. For each, encryption.key.pairs.<id>.private.key.file names the"
        " PEM file for reads, and encryption.key.pairs.<id>.public.key.file the PEM file for"
        " writes.",
    )
    encryption_key_pair_files: tuple[tuple[str, KeyPairFiles], ...] = ()
    custom_metadata_fields_include: tuple[str, ...] = key(
        LIST,
        (),
        "The fields of a copy's custom metadata, which Kafka's metadata stores (KIP-917).",
        check=any_of(*FIELDS),
    )
    start_check_enabled: bool = key(
        BOOLEAN,
        True,
        "Whether a broker puts, gets, lists and deletes a small object when it starts, and refuses"
        " to start where that fails. Stores over the network only.",
    )
    fetch_manifest_cache_size: int = key(
        INT, 1000, "Manifests kept in memory, in number.", check=at_least(1)
    )
    request_timeout_ms: int = key(
        LONG, 60_000, "Time for one request to the store, its body included.", check=at_least(1)
    )
    connect_timeout_ms: int = key(
        LONG, 5_000, "Time to open a connection to the store.", check=at_least(1)
    )
    retries: int = key(
        INT,
        3,
        "How often a failed request is tried again before the failure is reported.",
        check=at_least(0),
    )
    retry_timeout_ms: int = key(
        LONG, 30_000, "Time after which a request is not tried again.", check=at_least(0)
    )
    retry_backoff_ms: int = key(LONG, 100, "First wait between two tries.", check=at_least(1))
    retry_backoff_max_ms: int = key(
        LONG, 5_000, "Longest wait between two tries.", check=at_least(1)
    )
    s3_endpoint_url: str | None = key(
        optional(STRING), None, "Address of an S3-compatible store, http allowed. Default: AWS."
    )
    ca_certificates_path: str | None = key(
        optional(STRING),
        None,
        "PEM file with certificates of authorities for an https store, in addition to the system's."
        " Each process that reads the store reads the file at this path on its own machine.",
    )
    s3_region: str | None = key(optional(STRING), None, "Region of the bucket.")
    s3_path_style_access_enabled: bool = key(
        BOOLEAN, True, "Whether the bucket is named in the path, not in the host name."
    )
    aws_access_key_id: str | None = key(optional(STRING), None, "S3 access key.")
    aws_secret_access_key: str | None = key(optional(STRING), None, "S3 secret key.")
    aws_session_token: str | None = key(optional(STRING), None, "S3 session token.")
    gcs_credentials_path: str | None = key(
        optional(STRING), None, "File with the JSON key of a Google service account."
    )
    azure_account_name: str | None = key(optional(STRING), None, "Azure storage account.")
    azure_account_key: str | None = key(optional(STRING), None, "Key of the storage account.")
    azure_sas_token: str | None = key(optional(STRING), None, "Shared access signature.")

    def __post_init__(self) -> None:
        scheme = urlsplit(self.url).scheme
        if not self.url:
            raise ConfigError("a configuration key must be set key=url")
        if scheme not in URL_SCHEMES:
            raise ConfigError(
                f"url names no known kind of store key=url value={self.url!r}"
                f" known={','.join(URL_SCHEMES)}"
            )

        endpoint = self.s3_endpoint_url
        if endpoint is not None and not _is_web_address(endpoint):
            raise ConfigError(
                "not the address of a store key=s3.endpoint.url"
                f" value={without_passwords(endpoint)!r} hint='http://HOST:PORT, or https://'"
            )
        if self.encryption_enabled and self.encryption_key_pair_id not in self._key_pairs:
            raise ConfigError(
                "encryption needs an active key pair that is configured"
                f" key=encryption.key.pair.id value={self.encryption_key_pair_id}"
                f" configured={','.join(self._key_pairs) or 'none'}"
            )
        if self.encryption_enabled and self._active_key_pair.public_key_file is None:
            name = f"encryption.key.pairs.{self.encryption_key_pair_id}.public.key.file"
            raise ConfigError(f"a configuration key must be set key={name}")
        if self.layout != AIVEN and (self.compression_enabled or self.encryption_enabled):
            raise ConfigError(
                f"layout stores segments unchanged: no compression, no encryption"
                f" layout={self.layout}"
            )

    @property
    def _key_pairs(self) -> dict[str, KeyPairFiles]:
        return dict(self.encryption_key_pair_files)

    @property
    def _active_key_pair(self) -> KeyPairFiles:
        return self._key_pairs[self.encryption_key_pair_id or ""]

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{field.name}={'***' if is_secret(field.name.replace('_', '.')) else repr(value)}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) is not None
        )
        return f"ObjectStoreSettings({without_passwords(shown)})"

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> Self:
        """Read the keys, which are without their prefix.

        Raises UnknownConfigError, which names the nearest existing key, and ConfigError for a value
        outside its bounds or a missing url.
        """
        plain, pairs = _split_key_pairs(config)
        return cls(**parse_fields(cls, plain), encryption_key_pair_files=pairs)

    @property
    def scheme(self) -> str:
        return urlsplit(self.url).scheme

    def create_layout(self, transforms: SegmentTransforms | None = None) -> Layout:
        """The layout. `transforms` are those of `create_transforms`, if the caller has them
        already."""
        if self.layout == LOCAL_TIERED_STORAGE:
            prefix = DEFAULT_KEY_PREFIX if self.key_prefix is None else self.key_prefix
            return LocalTieredStorageLayout(prefix)
        return AivenLayout(
            self.key_prefix or "",
            self.chunk_size,
            transforms or self.create_transforms(),
            self.custom_metadata_fields_include,
        )

    def create_transforms(self) -> SegmentTransforms:
        """The transforms. Reads the key files; raises ConfigError if one cannot be used."""
        transform = TransformSettings(
            self.compression_enabled, self.compression_heuristic_enabled, self.encryption_enabled
        )
        pairs = self._key_pairs
        key_ring = KeyRing(self.encryption_key_pair_id, pairs) if pairs else None
        return SegmentTransforms(transform, key_ring)


def key_pair_file_keys(key_id: str) -> tuple[str, str]:
    """The keys that name the files of one of `encryption.key.pairs`: public, private."""
    prefix = f"encryption.key.pairs.{key_id}"
    return f"{prefix}.public.key.file", f"{prefix}.private.key.file"


def _split_key_pairs(
    config: Mapping[str, str],
) -> tuple[dict[str, str], tuple[tuple[str, KeyPairFiles], ...]]:
    """Separate the keys whose names contain the id of a key pair from all others."""
    plain = dict(config)
    pairs: list[tuple[str, KeyPairFiles]] = []
    for key_id in LIST.parse(config.get("encryption.key.pairs", "")):
        public, private = key_pair_file_keys(key_id)
        if private not in plain:
            raise ConfigError(f"a configuration key must be set key={private}")
        pairs.append((key_id, KeyPairFiles(plain.pop(public, None), plain.pop(private))))
    return plain, tuple(pairs)
