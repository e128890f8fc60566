#!/usr/bin/env bash
# What the tests use beside Python and Java: Maven (Kafka's jars), kcat, bubblewrap, linters of the packaging, a browser, Kerberos, and
# an S3 server and a proxy built with Go; and what the first tests of a checkout would wait for. Installs what can be installed here; tests
# that need the rest skip and say so.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
command -v mvn >/dev/null 2>&1 || missing+=(maven)
command -v kcat >/dev/null 2>&1 || missing+=(kcat)
command -v bwrap >/dev/null 2>&1 || missing+=(bubblewrap)
command -v systemd-analyze >/dev/null 2>&1 || missing+=(systemd)
command -v docker-compose >/dev/null 2>&1 || missing+=(docker-compose)  # reads the compose file; no engine
command -v chromedriver >/dev/null 2>&1 || missing+=(chromium chromium-driver)
[[ -x /usr/sbin/krb5kdc ]] || missing+=(krb5-kdc krb5-admin-server krb5-user libkrb5-dev libsasl2-modules-gssapi-mit)
if ((${#missing[@]})); then
  if [[ "$(id -u)" -eq 0 ]] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
      echo "apt-get cannot install: ${missing[*]}" >&2
  else
    echo "not installed, some tests skip: ${missing[*]} (Debian, Ubuntu: sudo apt-get install ${missing[*]})" >&2
  fi
fi

if command -v krb5-config >/dev/null 2>&1 && ! .venv/bin/python -c 'import gssapi' 2>/dev/null; then
  # Without optimization it compiles in a quarter of the time.
  CFLAGS=-O0 .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[kerberos]' ||
    echo "gssapi cannot be compiled, tests of Kerberos skip" >&2
fi

if command -v go >/dev/null 2>&1; then
  for tool in s3-server:versitygw toxiproxy:toxiproxy-server; do
    [[ -x ".tools/bin/${tool#*:}" ]] || "scripts/${tool%:*}.sh" install ||
      echo "scripts/${tool%:*}.sh cannot be installed" >&2
  done
else
  echo "Go is not installed, tests on S3 and of network faults skip: https://go.dev/dl" >&2
fi

# In a second where all of it is there.
PYTHONPATH=. .venv/bin/python -m tests.support.first_run
