"""The file of names and passwords, and the login of an HTTP request."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from isotherm.config.http_credentials import is_known, read_credentials
from isotherm.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "credentials"
    made.touch(0o600)
    return made


def test_passwords_may_have_colons_and_lines_may_be_empty(file: Path) -> None:
    file.write_text("reader:a:b\n\nother:c\n")
    assert read_credentials(str(file), "key") == {b"reader": b"a:b", b"other": b"c"}


@pytest.mark.parametrize("content", ["", "\n", "reader", ":secret", "reader:"])
def test_file_without_credentials_is_refused_and_not_shown(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"key=some\.key") as refused:
        read_credentials(str(file), "some.key")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "known"),
    [("reader:a", True), ("reader:b", False), ("other:a", False), ("other:", False), ("", False)],
)
def test_request_is_known_by_name_and_password(text: str, known: bool) -> None:
    assert is_known(base64.b64encode(text.encode()), {b"reader": b"a"}) is known


def test_what_is_not_base64_is_not_known() -> None:
    assert not is_known(b"***", {b"reader": b"a"})
