from __future__ import annotations

from pathlib import Path

from isotherm.config.definition import ConfigKey
from isotherm.spark.options import source_option_keys

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def table_row(name: str, option: ConfigKey) -> str:
    has_default = option.default not in (None, (), "")
    default = f"`{option.format(option.default)}`" if has_default else ""
    return f"| `{name}` | {default} | {option.documentation} |"


def test_page_lists_exactly_the_declared_options() -> None:
    _, _, rest = PAGE.read_text().partition("<!-- options:")
    table, _, _ = rest.partition("<!-- end of options -->")
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [table_row(name, option) for name, option in source_option_keys().items()]
