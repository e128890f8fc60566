"""Opens catalogs of Iceberg tables with PyIceberg: one in SQLite, which needs no server, or any
that it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pyiceberg.catalog import Catalog, infer_catalog_type, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.utils.config import Config
from sqlalchemy.engine import URL

from isotherm.errors import ConfigError
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.options import storage_url
from isotherm.spark.tables.folder_place import check_warehouse, local_folder
from isotherm.spark.tables.iceberg_snapshots import translated

_REST = "rest"
_EMBEDDED_FILE = "catalog.db"


def open_catalog(name: str | None, properties: Mapping[str, str], warehouse: str | None) -> Catalog:
    """The catalog `name` of PyIceberg's configuration, whose properties `properties` override.
    Without both, a SQLite catalog inside the warehouse, which must be a local folder.

    `warehouse` is a path or a URL. For a REST catalog it is a name that the server knows, and is
    passed on unchanged. None means the warehouse of the catalog's configuration.
    """
    if name is None and not properties:
        return _embedded(warehouse or "")
    given = dict(properties)
    uri = properties.get("uri")
    place = f"catalog={name}" if uri is None else f"uri={_without_login(uri)}"
    with translated(f"the catalog cannot be opened {place}"):
        try:
            if warehouse is not None:
                is_rest = _type_of(name, properties) == _REST
                given.setdefault("warehouse", warehouse if is_rest else _location(warehouse))
            return load_catalog(name or "isotherm", **given)
        except ValueError as error:
            raise ConfigError(f"no such catalog catalog={name} reason={str(error)!r}") from error


def has_embedded_catalog(warehouse: ObjectStoreSettings) -> bool:
    """Whether the warehouse is a local folder with a catalog inside."""
    folder = local_folder(warehouse)
    return folder is not None and (folder / _EMBEDDED_FILE).exists()


def _embedded(warehouse: str) -> Catalog:
    location = _location(warehouse)
    if not location.startswith("file://"):
        raise ConfigError(
            "a warehouse that is no local folder needs a catalog"
            f" warehouse={location} hint='--catalog or --to-option'"
        )
    folder = Path(location.removeprefix("file://"))
    check_warehouse(folder)
    file = folder / _EMBEDDED_FILE
    with translated(f"the catalog cannot be opened file={file}"):
        return _EmbeddedCatalog(location, file)


class _EmbeddedCatalog(SqlCatalog):
    """A catalog in a SQLite file, which is made for the first table: a run that fails before leaves
    nothing behind."""

    def __init__(self, warehouse: str, file: Path) -> None:
        self._file = file
        # In this mode SQLite opens a file, and makes none.
        mode = {"mode": "rw", "uri": "true"}
        uri = URL.create("sqlite", database=f"file:{quote(str(file))}", query=mode)
        has_tables = "true" if file.exists() else "false"
        super().__init__(
            "isotherm",
            uri=uri.render_as_string(),
            warehouse=warehouse,
            init_catalog_tables=has_tables,
        )

    def load_table(self, identifier: str | Identifier) -> Table:
        if not self._file.exists():
            raise NoSuchTableError(f"Table does not exist: {identifier}")
        return super().load_table(identifier)

    def create_namespace(
        self, namespace: str | Identifier, properties: Properties = EMPTY_DICT
    ) -> None:
        if not self._file.exists():
            with translated(f"the warehouse cannot be made folder={self._file.parent}"):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._file.touch()
            self.create_tables()
        super().create_namespace(namespace, properties)


def _without_login(uri: str) -> str:
    """A URI of a database may have a password in it."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def _type_of(name: str | None, properties: Mapping[str, str]) -> str | None:
    """The type of the catalog. Raises ValueError as PyIceberg does if nothing determines it."""
    configured = Config().get_catalog_config(name or "isotherm") or {}
    merged = {**configured, **properties}
    if "type" in merged:
        return str(merged["type"]).lower()
    if "py-catalog-impl" in merged:
        return None
    kind = infer_catalog_type(name or "isotherm", merged)
    return None if kind is None else kind.value


def _location(warehouse: str) -> str:
    """The warehouse as an Iceberg location, which is not escaped like a URL."""
    url = storage_url(warehouse)
    if not url.startswith("file://"):
        return url
    location = f"file://{unquote(url.removeprefix('file://'))}"
    if marks := sorted(set("?#") & set(location)):
        raise ConfigError(
            "the path of an Iceberg warehouse cannot have these characters"
            f" warehouse={location} characters={''.join(marks)}"
        )
    return location
