"""Run the oracle by hand.

python -m oracle jars                            resolve the jars, print their folder
python -m oracle serve DIRECTORY [KEY=VALUE ...] run a broker in a folder until Ctrl-C
python -m oracle tool CLASS [ARGUMENT ...]       run one of Kafka's own tools
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
from pathlib import Path

from oracle.jars import OracleUnavailableError, resolve_jars
from oracle.kafka import EAGER_SETTINGS, java_command, running_kafka


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("jars")
    serve = commands.add_parser("serve")
    serve.add_argument("directory", type=Path)
    serve.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    tool = commands.add_parser("tool")
    tool.add_argument("main")
    tool.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        if options.command == "jars":
            print(resolve_jars())
            return 0
        if options.command == "tool":
            return subprocess.call(java_command(options.main, *options.arguments))
        return _serve(options.directory, dict(text.split("=", 1) for text in options.overrides))
    except OracleUnavailableError as error:
        print(error, file=sys.stderr)
        return 1


def _serve(directory: Path, overrides: dict[str, str]) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    settings = {**EAGER_SETTINGS, **overrides}
    with running_kafka(directory.resolve(), settings, files_are_kept=True) as kafka:
        print(f"bootstrap.servers={kafka.bootstrap_server} pid={kafka.pid}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
