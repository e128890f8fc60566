"""The parts of the site that are not in docs/: pages made from code, and links that leave docs/.

A hook of mkdocs. The pages exist in the site alone, so they cannot be out of date.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from isotherm.broker.apis.api_register import served_table
from isotherm.cli.main import app

ROOT = Path(__file__).parents[1]
_OF_THE_ROOT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    pages = {
        "reference/cli.md": _command_line(),
        **{uri: (ROOT / name).read_text(encoding="utf-8") for uri, name in _OF_THE_ROOT.items()},
    }
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files that are no page of the site by the files' names."""
    del config
    if page.file.src_uri in _OF_THE_ROOT:
        folder = ROOT
    else:
        folder = (ROOT / "docs" / page.file.src_uri).parent

    def resolved(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if not target.exists():
            return link[0]
        if not target.is_relative_to(ROOT / "docs"):
            return f"](#) (`{target.relative_to(ROOT)}`)"
        if folder == ROOT:
            return f"]({target.relative_to(ROOT / 'docs')}{link[2] or ''})"
        return link[0]

    del files
    for mark, table in _TABLES.items():
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    return _LINK.sub(resolved, markdown)


def _served_apis() -> str:
    rows = [f"| {key} | {name} | {versions} |" for key, name, versions in served_table()]
    return "\n".join(["| key | API | versions |", "|---:|---|---|", *rows])


def _command_line() -> str:
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="isotherm")
    return get_docs_for_click(obj=command, ctx=context, name="isotherm", title="Command line")


_TABLES = {"<!-- served apis -->": _served_apis}
