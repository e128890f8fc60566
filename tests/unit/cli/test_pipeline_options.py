from __future__ import annotations

from isotherm.cli.pipeline_options import source_texts
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
