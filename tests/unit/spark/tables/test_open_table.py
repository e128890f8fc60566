"""The default name of a topic's Iceberg table."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.errors import ConfigError
from isotherm.spark.tables.iceberg_catalogs import open_catalog
from isotherm.spark.tables.open_table import TablePlace, iceberg_name, open_table
from isotherm.spark.tables.topic_table import Identity, TopicTable, check_topic


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("flights", "kafka.flights"),
        ("db.public.cust", "kafka.db_public_cust"),
        ("server1.DBO.Cust", "kafka.server1_dbo_cust"),
        ("eu-west.a_b", "kafka.eu-west_a_b"),
        ("..a.", "kafka.__a_"),
    ],
)
def test_name_is_one_level_below_the_namespace(topic: str, name: str) -> None:
    assert iceberg_name(topic) == name


def test_table_of_a_topic_with_dots_is_listed(tmp_path: Path) -> None:
    made(tmp_path, "db.public.Cust")
    catalog = open_catalog(None, {}, str(tmp_path))
    assert catalog.list_namespaces() == [("kafka",)]
    assert catalog.list_tables("kafka") == [("kafka", "db_public_cust")]
    assert opened(tmp_path, "db.public.Cust").name == "kafka.db_public_cust"


@pytest.mark.parametrize("other", ["a_b", "A.b"])
def test_second_topic_of_a_name_is_refused(tmp_path: Path, other: str) -> None:
    made(tmp_path, "a.b")
    table = opened(tmp_path, other)
    identity = table.identity()
    assert identity is not None
    with pytest.raises(
        ConfigError, match=rf"its_topic=a\.b topic={other} hint='name another table"
    ):
        check_topic(identity, other, "id", table.name)


def test_table_is_not_that_of_another_topics_dead_letters(tmp_path: Path) -> None:
    made(tmp_path, "a.dead.letters")
    table = made(tmp_path, "a")
    with pytest.raises(ConfigError, match=r"table=kafka\.a columns="):
        table.places(table.types())

    made(tmp_path, "b").places(table.types())
    with pytest.raises(ConfigError, match=r"not made by this command table=kafka\.b_dead_letters"):
        opened(tmp_path, "b.dead.letters").identity()


def test_other_names_are_given(tmp_path: Path) -> None:
    place = TablePlace("iceberg", str(tmp_path), "lake.db.Cust")
    assert open_table("db.public.Cust", place, writes=True).name == "lake.db.Cust"


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_folders_have_the_topics_name(tmp_path: Path, table_format: str) -> None:
    place = TablePlace(table_format, str(tmp_path))
    assert open_table("db.public.Cust", place, writes=True).name == "db.public.Cust"


def opened(warehouse: Path, topic: str) -> TopicTable:
    return open_table(topic, TablePlace("iceberg", str(warehouse)), writes=True)


def made(warehouse: Path, topic: str) -> TopicTable:
    table = opened(warehouse, topic)
    table.create(Identity(topic=topic, topic_id="id", value_format="raw"))
    return table


@pytest.mark.parametrize("table_format", ["delta", "parquet", "iceberg"])
def test_run_without_a_commit_makes_no_warehouse(tmp_path: Path, table_format: str) -> None:
    warehouse = tmp_path / "lake house"
    table = open_table("t", TablePlace(table_format, str(warehouse)), writes=True)
    assert table.identity() is None
    if table_format == "parquet":  # whose first commit creates the table
        table.create(Identity(topic="t", topic_id="id", value_format="raw"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("table_format", ["delta", "parquet", "iceberg"])
def test_warehouse_in_a_file_is_refused(tmp_path: Path, table_format: str) -> None:
    (tmp_path / "file").touch()
    place = TablePlace(table_format, str(tmp_path / "file" / "lake"))
    with pytest.raises(ConfigError, match=r"the warehouse cannot be made .*file is not a folder"):
        open_table("t", place, writes=True)
