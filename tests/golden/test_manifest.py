from __future__ import annotations

import hashlib
import json


def test_manifest_names_exactly_the_golden_files_with_their_digests(golden) -> None:
    manifest = json.loads((golden.root / "manifest.json").read_text())
    digests = {
        str(path.relative_to(golden.root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in golden.root.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert digests == manifest["files"]
