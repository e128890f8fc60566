"""Every job of `isotherm pipeline` on what `make demo` left, as on a terminal of 160 columns.

    python examples/demo/pipeline.py [--data-dir isotherm-demo] [--pictures FOLDER]

Nothing of the demo's data is changed. Sweep and scrub look at a copy of the bucket in which three
things are wrong, so that there is something to find. At the end a broker starts on a copy of all of
it, one aircraft is erased there in place, and the certificate is checked. With `--pictures` each
job's output becomes a picture, <job>.svg, which loads nothing from anywhere: those of docs/pipeline
are made so.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

COLUMNS = 160
MADE_HERE = ("projection", "newest", "damaged", "lake", "audit.html", "forgotten")
AIRCRAFT = "N725MQ"
"""The tail number, and so the key, of the aircraft with the most flights."""
TASK_INTERVALS = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "remote.log.manager.task.interval.ms": "500",
}
FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True)
class Job:
    """A command in the demo's folder, and its expected exit code: 3 if it must find something."""

    name: str
    options: str
    exit_code: int = 0

    @property
    def command(self) -> str:
        return f"isotherm pipeline {self.name} {self.options}"


JOBS = [
    Job("replay", "--log-dir log --of flights"),
    Job("project", "--log-dir log --to projection"),
    Job("verify", "--log-dir log --against projection"),
    Job("audit", "--log-dir log --report audit.html"),
    Job("sweep", "--path damaged --log-dir log --age-hours 0", exit_code=3),
    Job("scrub", "--path damaged --log-dir log", exit_code=3),
    Job("rebuild", "--path bucket"),
    Job("compact", "--path bucket -o metadata=bucket --to newest --run"),
    Job("table", "flights --path bucket --value json --warehouse lake"),
]
# Jobs that a broker has to answer. The demo has left none: erase has one of its own.
WITH_A_BROKER = ("erase", "load", "repartition")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path("isotherm-demo"))
    parser.add_argument("--pictures", type=Path, help="draw each job's output into this folder")
    arguments = parser.parse_args()
    folder = arguments.data_dir.absolute()
    if not (folder / "bucket").is_dir():
        print(f"there is nothing of the demo in {folder}: run make demo", file=sys.stderr)
        return 1
    _remove_what_is_made_here(folder)
    _damage(folder / "bucket", folder / "damaged")
    failed = [job.name for job in JOBS if not _run(job, folder, arguments.pictures)]
    if not _forget(AIRCRAFT, folder):
        failed.append("erase")
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nEvery job ended as it should.")
    return 1 if failed else 0


def _forget(aircraft: str, folder: Path) -> bool:
    """Erase the records of an aircraft in place, in a copy of the folder with a running broker, and
    check the certificate. Returns whether both ended well."""
    # Here, because the list of jobs is read without the folder of this file on the path.
    from broker import BrokerProcess
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    copy = folder / "forgotten"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*MADE_HERE))
    (copy / "gone.txt").write_text(f"{aircraft}\n")
    # By default the broker looks for runs once a minute.
    config = {"rlmm.config.remote.log.rewrite.check.interval.ms": "500", **TASK_INTERVALS}
    with BrokerProcess(copy, config) as broker:
        # The last records are on the broker only. This rolls their segments, which are then copied.
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_server})
        action = AlterConfigOpType.SET
        entry = ConfigEntry("local.retention.ms", "1000", incremental_operation=action)
        topic = ConfigResource(ResourceType.TOPIC, "flights", incremental_configs=[entry])
        admin.incremental_alter_configs([topic])[topic].result()
        erase = f"-b {broker.bootstrap_server} --path bucket -o subscribe=flights --keys gone.txt"
        if not _run(Job("erase", f"{erase} --run --wait --keep-old-ms 0"), copy, None):
            return False
        (certificate,) = (copy / "bucket" / "isotherm-erasures").glob("*.json")
        return _run(Job("erase", f"{erase} --verify {certificate.stem}"), copy, None)


def _remove_what_is_made_here(folder: Path) -> None:
    for name in MADE_HERE:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        (folder / name).unlink(missing_ok=True)


def _damage(bucket: Path, copy: Path) -> None:
    """Copy the bucket with one byte of a log changed, one object missing, and an upload that was
    cut off.
    """
    shutil.copytree(bucket, copy, copy_function=os.link)
    logs = sorted(copy.rglob("*.log"))
    changed = bytearray(logs[0].read_bytes())
    changed[1000] ^= 1
    # The copy has hard links: to write the file in place would damage the bucket too.
    logs[0].unlink()
    logs[0].write_bytes(changed)
    logs[1].with_suffix(".indexes").unlink()
    offset = logs[2].name.partition("-")[0]
    os.link(logs[2], logs[2].with_name(f"{offset}-AAAAAAAAAAAAAAAAAAAAAQ.log"))


def _run(job: Job, folder: Path, pictures: Path | None) -> bool:
    print(f"\n$ {job.command}", flush=True)
    exit_code, output = _on_terminal(job, folder)
    print(output, end="", flush=True)
    if pictures is not None:
        (pictures / f"{job.name}.svg").write_text(_picture(job, output), encoding="utf-8")
    return exit_code == job.exit_code


def _on_terminal(job: Job, folder: Path) -> tuple[int, str]:
    """Run the job on a pseudo-terminal; return its status and output.

    Progress, on stderr, is dropped.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    executable = Path(sys.executable).with_name("isotherm")
    process = subprocess.Popen(
        [executable, "pipeline", job.name, *shlex.split(job.options)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)},
    )
    os.close(its)
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        output = b"".join(iter(lambda: _read(terminal.fileno()), b""))
    return process.wait(), output.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        # EIO: on Linux, no process has the other side open any more.
        return b""


def _picture(job: Job, output: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    console.print(f"[bold green]$[/] {job.command}", soft_wrap=True)
    console.print(Text.from_ansi(output.rstrip("\n")), soft_wrap=True)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", FONTS)
    return console.export_svg(
        title=f"isotherm pipeline {job.name}", code_format=form, unique_id=job.name
    )


if __name__ == "__main__":
    sys.exit(main())
