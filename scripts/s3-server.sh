#!/bin/sh
# An S3 server to try Isotherm with: versitygw, built from the Go module proxy into .tools/bin.
#
#   scripts/s3-server.sh install          build it (needs Go)
#   scripts/s3-server.sh run DIR [PORT]   serve DIR; each folder in it is a bucket
#
# Keys are taken from ROOT_ACCESS_KEY and ROOT_SECRET_KEY; both default to "isotherm".
set -eu

version=v1.7.0
root=$(cd "$(dirname "$0")/.." && pwd)
binary=${VERSITYGW:-$root/.tools/bin/versitygw}

case ${1:-} in
install)
  command -v go >/dev/null || { echo "go is not installed: see https://go.dev/dl" >&2; exit 1; }
  echo "versitygw $version is compiled, which takes some minutes" >&2
  GOBIN=$root/.tools/bin exec go install "github.com/versity/versitygw/cmd/versitygw@$version"
  ;;
run)
  [ $# -ge 2 ] || { echo "usage: $0 run DIR [PORT]" >&2; exit 2; }
  [ -x "$binary" ] || { echo "versitygw is not there: run $0 install" >&2; exit 1; }
  mkdir -p "$2/isotherm"
  # The server refuses a relative path.
  folder=$(cd "$2" && pwd)
  echo "url=s3://isotherm  s3.endpoint.url=http://127.0.0.1:${3:-7070}  s3.region=us-east-1"
  exec "$binary" --access "${ROOT_ACCESS_KEY:-isotherm}" --secret "${ROOT_SECRET_KEY:-isotherm}" \
    --port "127.0.0.1:${3:-7070}" --quiet --keep-alive posix "$folder"
  ;;
*)
  sed -n '2,7s/^# \{0,1\}//p' "$0"
  exit 2
  ;;
esac
