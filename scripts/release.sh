#!/usr/bin/env bash
# Builds sdist and wheel of the version that HEAD's tag names, into dist/.
#
#   git tag v0.1.0 && ISOTHERM_PROJECT_URL=https://host/owner/name scripts/release.sh
#
# The version is in src/isotherm/__init__.py, so that an archive without .git builds the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${ISOTHERM_PROJECT_URL:?the address of the repository, for the links of the description}"
python=${PYTHON:-.venv/bin/python}
version=$("$python" -c 'import isotherm; print(isotherm.__version__)')
refuse() { echo "release.sh: $*" >&2; exit 1; }

[[ -z "$(git status --porcelain)" ]] || refuse "there are changes that are not committed"
git tag --points-at HEAD | grep -qx "v$version" || refuse "HEAD has no tag v$version: git tag v$version"
grep -qE "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md \
  || refuse "CHANGELOG.md has no line '## [$version] - YYYY-MM-DD'"
rm -rf dist
"$python" -m build --no-isolation --outdir dist .
sha256sum dist/*
