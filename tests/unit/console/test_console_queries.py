"""Each query parameter of the console's API, with values at and beyond its range: an answer or a
reason, never an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from isotherm.console import app, query, record_pages
from isotherm.console.openapi import openapi_document
from tests.support.console_server import running_console
from tests.support.scripted_cluster import damaged_cluster
from tests.unit.console.test_console_api import get

NO_NUMBERS = (
    "", "x", "NaN", "inf", "-inf", "1e3", "1.0", "0x10", "1_0", "%205", "5%20", "%2B5", "%D9%A3",
    "%00", "--1", "null", "5%0A", "9" * 30, "-" + "9" * 19, "-" + "9" * 5000,
)  # fmt: skip
TEXTS = ("", "NaN", "%00", "%FF", "%ED%A0%80", "x" * 10_000, "-9", "%0D%0A", "%F0%9F%8C%A1")


class Parameter(NamedTuple):
    path: str
    name: str
    schema: dict[str, Any]


def parameters() -> list[Parameter]:
    filled = {"{topic}": "orders", "{partition}": "0"}
    return [
        Parameter(
            re.sub(r"\{\w+\}", lambda found: filled[found[0]], path), each["name"], each["schema"]
        )
        for path, methods in openapi_document()["paths"].items()
        for each in methods["get"]["parameters"]
        # An answer of a tail has no end; its parameters are those of the records.
        if each["in"] == "query" and not path.endswith("/tail")
    ]


NUMBERS = [each for each in parameters() if each.schema.get("type") == "integer"]
OTHERS = [each for each in parameters() if each not in NUMBERS]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    cluster = damaged_cluster(history=10)
    with running_console(lambda: cluster, interval_s=3600) as running:
        yield running


def test_the_document_has_each_parameter_that_is_read() -> None:
    source = "".join(Path(each.__file__).read_text() for each in (app, record_pages, query))
    read = re.findall(r'\b(?:text|number|optional_number)\(\s*request, "(\w+)"', source)
    assert set(read) == {parameter.name for parameter in parameters()}
    # One function alone reads them, so none escapes its checks.
    assert source.count("request.query_params") == 2


def refusal(address: str, path: str, query: str) -> str:
    status, _, body = get(address, f"{path}?{query}")
    assert status == 400, (query[:80], body)
    reason = json.loads(body)["error"]
    assert isinstance(reason, str)
    return reason


@pytest.mark.parametrize("parameter", NUMBERS, ids=lambda each: f"{each.path[-8:]}-{each.name}")
def test_numbers_out_of_range_have_a_reason(address: str, parameter: Parameter) -> None:
    path, name, schema = parameter
    least, most = schema["minimum"], schema["maximum"]
    for text in (*NO_NUMBERS, str(least - 1), str(most + 1)):
        reason = refusal(address, path, f"{name}={text}")
        assert reason == f"{name} must be a whole number from {least} to {most}"
    for number in (least, most):
        status, _, body = get(address, f"{path}?{name}={number}")
        assert status == 200 or (status, name) == (404, "at"), (number, body)


@pytest.mark.parametrize("parameter", OTHERS, ids=lambda each: each.name)
def test_any_text_has_an_answer(address: str, parameter: Parameter) -> None:
    path, name, schema = parameter
    for text in TEXTS:
        if "enum" in schema and text:
            assert refusal(address, path, f"{name}={text}").startswith(f"{name} must be one of ")
        elif name in ("ranges", "where") and text:
            assert refusal(address, path, f"{name}={text}").startswith(("ranges must", "not a"))
        else:
            assert get(address, f"{path}?limit=1&{name}={text}")[0] == 200, text[:80]


@pytest.mark.parametrize(
    "parameter", parameters(), ids=lambda each: f"{each.path[-8:]}-{each.name}"
)
def test_a_parameter_is_given_once(address: str, parameter: Parameter) -> None:
    path, name, _ = parameter
    assert refusal(address, path, f"{name}=1&{name}=1") == f"{name} is given 2 times: give it once"
    assert "given 1000 times" in refusal(address, path, "&".join([f"{name}=1"] * 1000))


@pytest.mark.parametrize("text", ["%00", "%FF", "NaN", "-9", "9" * 5000, "%2E%2E", "x" * 10_000])
def test_any_name_in_a_path_has_an_answer(address: str, text: str) -> None:
    for path in (
        f"/api/topics/{text}",
        f"/api/topics/{text}/map",
        f"/api/topics/{text}/records",
        f"/api/topics/orders/partitions/{text}/segments/{'A' * 22}",
        f"/api/topics/orders/partitions/0/segments/{text}",
        f"/api/groups/{text}",
        f"/api/jobs/reports/{text}",
    ):
        status, _, body = get(address, path)
        assert status in (400, 404), (path[:80], body)
        assert json.loads(body)["error"]
