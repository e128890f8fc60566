"""Which lines of librdkafka are another client's."""

from __future__ import annotations

from tests.support.other_clients import without_other_clients

LINE = (
    "%3|1795876190.555|FAIL|rdkafka#producer-78| [thrd:sasl_plaintext://127.0.0.1:13167/bootstrap]:"
    " sasl_plaintext://127.0.0.1:13167/bootstrap: Connect failed\n"
)


def test_lines_of_other_brokers_clients_are_left_out() -> None:
    errors = f"isotherm: no such topic\n{LINE}"
    assert without_other_clients(errors, "-b localhost:9092") == "isotherm: no such topic\n"
    assert without_other_clients(errors, "-b 127.0.0.1:13167") == errors


def test_line_without_an_address_stays() -> None:
    line = "%4|1795876190.555|CONFWARN|rdkafka#producer-78| [thrd:app]: Configuration\n"
    assert without_other_clients(line, "") == line
