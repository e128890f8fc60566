"""The page for a browser at an address that the console does not have."""

from __future__ import annotations

import html

from starlette.requests import Request

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Isotherm console</title>
<link rel="icon" href="{root}static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{root}static/style.css">
</head>
<body>
<main id="main">
<h1>{title}</h1>
<section class="card">
<p>The console has no page {path}.</p>
<p>Go to <a href="{root}#/">Overview</a>, <a href="{root}#/topics">Topics</a>,
<a href="{root}#/groups">Groups</a>.</p>
</section>
</main>
</body>
</html>
"""


def is_for_a_person(request: Request) -> bool:
    """Whether a browser opens the address itself; scripts and programs get JSON."""
    return "text/html" in request.headers.get("accept", "")


def missing_page(request: Request) -> str:
    """HTML with ways back. Its links are relative, since a proxy may have taken a path away."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    root = "../" * (path.count("/") - 1) or "./"
    return _PAGE.format(title="No such page", root=root, path=html.escape(path))
