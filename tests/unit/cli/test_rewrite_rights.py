"""Jobs that write into a bucket without the right to do so."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import ConfigError
from tests.support.s3_stub import S3Stub, WireFault

REFUSED = "access denied .* operation=put"
NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    "arguments",
    [
        ("erase", "-o", "subscribe=users", "--where", "offset < 5"),
        ("compact", "-o", "subscribe=users"),
        ("load", "users", "rows.parquet"),
    ],
)
def test_run_in_place_is_refused_before_any_segment_is_read_or_staged(
    arguments: tuple[str, ...],
) -> None:
    with S3Stub() as stub:
        stub.fail(WireFault.READ_ONLY, "PUT")
        settings = dict(stub.config)
        place = ["-b", NOBODY, "--path", settings.pop("url")]
        for name, text in settings.items():
            place += ["-o", f"{name}={text}"]
        done = CliRunner().invoke(app, ["pipeline", *arguments, *place, "--run"])
    assert done.exit_code == 1
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match=REFUSED):
        raise done.exception
    assert [method for method, _ in stub.requests if method != "GET"] == ["PUT"]
    assert stub.objects() == {}
