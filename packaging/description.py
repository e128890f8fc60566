"""Hatch's hook that makes the description of the package, which an index shows, from README.md.

Links to files of the project lead nowhere on an index page. With ISOTHERM_PROJECT_URL (the address
of the repository's page, such as https://host/owner/name) they become absolute, to the files of
this version, and the package gets its project links. Without it a link becomes its text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

URL_VARIABLE = "ISOTHERM_PROJECT_URL"
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?://|#)(?P<target>[^)]+)\)")


class DescriptionHook(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        url = os.environ.get(URL_VARIABLE, "").rstrip("/")
        files = f"{url}/%s/v{metadata['version']}/" if url else None
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(readme, files)}
        if files is not None:
            metadata["urls"] = {
                "Source": url,
                "Documentation": files % "blob" + "docs/index.md",
                "Changelog": files % "blob" + "CHANGELOG.md",
                "Issues": f"{url}/issues",
            }


def for_index(readme: str, files: str | None) -> str:
    """`files` is the address of the files of this version, with %s for how they are shown."""

    def replaced(link: re.Match[str]) -> str:
        picture, text, target = link["picture"], link["text"], link["target"]
        if files is None:
            return "" if picture else text
        return f"{picture}[{text}]({files % ('raw' if picture else 'blob')}{target})"

    return _LINK.sub(replaced, readme)
