from __future__ import annotations

import pytest

from isotherm.cli.pipeline_options import source_texts, spark_session
from isotherm.errors import ConfigError
from isotherm.spark.option_parsing import parse_options


def test_command_line_becomes_options_of_the_source() -> None:
    texts = source_texts(
        "s3://bucket", ["key.prefix=kafka/"], "broker:9092", ["security.protocol=SSL"]
    )
    options = parse_options(texts)
    assert options.path == "s3://bucket"
    assert options.storage_settings == {"key.prefix": "kafka/"}
    assert options.kafka_properties == {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SSL",
    }
    assert options.selects_topic("any.topic")


def test_a_choice_of_topics_is_kept() -> None:
    options = parse_options(source_texts("folder", ["Subscribe=flights"], None, None))
    assert options.named_topics == {"flights"}


@pytest.mark.parametrize("master", ["host:7077", "local[]", "", "mesos://host"])
def test_what_is_no_master_is_refused_before_spark_is_started(master: str) -> None:
    with (
        pytest.raises(ConfigError, match="no address of a Spark cluster key=master"),
        spark_session(master, None),
    ):
        pass
