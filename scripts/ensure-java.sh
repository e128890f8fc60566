#!/usr/bin/env bash
# Spark needs Java 17 or newer. Where it is missing, install it from the distribution's packages if
# that can be done (root on Debian or Ubuntu); otherwise say exactly what to run.
set -euo pipefail

java_major() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
  command -v "$java" >/dev/null 2>&1 || return 1
  "$java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1
}

found=$(java_major || true)
if [[ -n "$found" && "$found" -ge 17 ]]; then
  exit 0
fi

if command -v apt-get >/dev/null 2>&1; then
  if [[ "$(id -u)" -eq 0 ]]; then
    echo "Java 17 or newer is missing (found: ${found:-none}); installing it with apt-get" >&2
    apt-get update -qq
    apt-get install -y -qq openjdk-17-jre-headless >/dev/null ||
      apt-get install -y -qq default-jre-headless >/dev/null
    exit 0
  fi
  echo "Java 17 or newer is missing (found: ${found:-none}). Run:" >&2
  echo "  sudo apt-get install openjdk-17-jre-headless" >&2
else
  echo "Java 17 or newer is missing (found: ${found:-none}). Install it with your system's" >&2
  echo "package manager, or set JAVA_HOME to one, and run this again." >&2
fi
exit 1
