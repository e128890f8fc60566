#!/bin/sh
# A proxy that makes a network bad on purpose: toxiproxy, built from the Go module proxy into
# .tools/bin.
#
#   scripts/toxiproxy.sh install    build it (needs Go)
set -eu

version=v2.12.0
root=$(cd "$(dirname "$0")/.." && pwd)

case ${1:-} in
install)
  command -v go >/dev/null || { echo "go is not installed: see https://go.dev/dl" >&2; exit 1; }
  mkdir -p "$root/.tools/bin"
  built=$(mktemp -d)
  trap 'rm -r "$built"' EXIT
  GOBIN=$built go install "github.com/Shopify/toxiproxy/v2/cmd/server@$version"
  mv "$built/server" "$root/.tools/bin/toxiproxy-server"
  ;;
*)
  sed -n '2,6s/^# \{0,1\}//p' "$0"
  exit 2
  ;;
esac
