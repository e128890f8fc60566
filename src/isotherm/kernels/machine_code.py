"""Where the machine code of kernels is kept between processes, and what it may be taken for.

A kernel inlines functions of other modules of this package, so all of them have one stamp: of every
source here, the versions of what compiles them, the processor, and the settings of Numba that change
code. By content alone: a wheel, a checkout and a copied folder that hold the same share machine code,
and an edit, an upgrade or another processor finds none. Below the first of these folders that can be
written to there is one folder to each stamp, and a file in it to each kernel; every one is read from:

    $NUMBA_CACHE_DIR/isotherm-kernels             as Numba has it
    __pycache__ beside the sources                goes with an environment that is copied or packed
    $XDG_CACHE_HOME/isotherm/kernels              or ~/.cache
    isotherm-kernels-<user id> where temporary files go; only if no other user can write there

A file is replaced as a whole, and begins with the digest of the rest: one that a crash or another writer
has left behind is either right or not used. Processes that find none at the same time, as the workers of a
job do, have one of them compile: it holds a lock on a file beside the stamps' folders, which the system
takes back from a process that ends. Importing this module does not load Numba.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata, resources
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

# Newest stamps of which a folder keeps the machine code: versions, environments, processors that
# share it. One takes 2 MB.
STAMPS_MAX = 8

# How long a process waits for another that compiles the same kernel, before it compiles for itself. A
# kernel takes a second of a core.
WAIT_MAX_S = 60.0
_POLL_S = 0.05
_LOWEST_PRIORITY = 19

_PACKAGE = __package__
_COMPILER = ("numba", "llvmlite", "numpy")
_DIGEST_SIZE = hashlib.sha256().digest_size
_STAMP_FORM = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def source_digest(sources: Mapping[str, bytes], versions: Iterable[str]) -> str:
    """The half of a stamp that says what is compiled, and by what."""
    parts = [part for name in sorted(sources) for part in (name.encode(), sources[name])]
    return _digest([*parts, *(version.encode() for version in versions)])


def target_digest(target: Iterable[object]) -> str:
    """The half of a stamp that says for what it is compiled: processor and settings."""
    return _digest([repr(part).encode() for part in target])


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def read_sources() -> dict[str, bytes]:
    """The modules of this package, from a folder or a zip."""
    return {
        entry.name: entry.read_bytes()
        for entry in resources.files(_PACKAGE).iterdir()
        if entry.name.endswith((".py", ".pyc"))
    }


def compiler_versions() -> tuple[str, ...]:
    return sys.version, *map(_version, _COMPILER)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # installed as nothing but files
        return str(importlib.import_module(name).__version__)


@functools.cache
def current_source_digest() -> str:
    """As it was when this process first asked."""
    return source_digest(read_sources(), compiler_versions())


def is_anything_kept() -> bool:
    """Whether there is machine code of these sources, if maybe for another processor.

    For those who have not loaded Numba, which alone knows what the processor is called.
    """
    prefix = current_source_digest()
    return any(
        folder.is_dir() and any(folder.glob(f"{prefix}-*/*")) for folder in _readable_folders()
    )


def read(stamp: str, name: str) -> bytes | None:
    """What was kept of a kernel under this stamp."""
    for folder in _readable_folders():
        with contextlib.suppress(OSError):
            content = (folder / stamp / name).read_bytes()
            kept = content[_DIGEST_SIZE:]
            if hashlib.sha256(kept).digest() == content[:_DIGEST_SIZE]:
                return kept
            logger.info("machine code is damaged, and made anew file=%s", folder / stamp / name)
    return None


def is_kept(stamp: str, name: str) -> bool:
    return any((folder / stamp / name).exists() for folder in _readable_folders())


@contextlib.contextmanager
def made_by_one(stamp: str, name: str, wait_max_s: float = WAIT_MAX_S) -> Iterator[None]:
    """Waits while another process is in here for the same kernel, which may be kept afterwards.

    But not for longer than `wait_max_s`, nor where no lock can be had. A process of the lowest priority
    neither waits nor makes others wait: it would hold up those that have work to do.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) >= _LOWEST_PRIORITY:
        yield
        return
    with contextlib.ExitStack() as stack:
        lock = _open_lock(f".{stamp}.{name}.lock")
        if lock is not None:
            stack.callback(os.close, lock.descriptor)
            if _is_taken(lock.descriptor, wait_max_s):
                # One that has opened it before this compiles too: twice the work, and nothing wrong.
                stack.callback(lock.path.unlink, missing_ok=True)
        yield


class _LockFile(NamedTuple):
    descriptor: int
    path: Path


def _open_lock(name: str) -> _LockFile | None:
    """In the folder where machine code is going to be kept; None where nothing can be."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            _make(folder)
            path = folder / name
            return _LockFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), path)
    return None


def _is_taken(descriptor: int, wait_max_s: float) -> bool:
    for _ in range(1 + round(wait_max_s / _POLL_S)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell_that_another_compiles()
            time.sleep(_POLL_S)  # noqa: TID251 - this package has no Clock
        except OSError:  # a file system without locks
            return False
        else:
            return True
    return False


@functools.cache
def _tell_that_another_compiles() -> None:
    logger.info("kernels are compiled by another process, which is waited for")


def keep(stamp: str, name: str, code: bytes) -> Path | None:
    """Where machine code is kept from now on; None when no folder can be written to.

    Nor is any kept when the sources have changed since they were read: it may be of either.
    """
    if source_digest(read_sources(), compiler_versions()) != current_source_digest():
        return None
    for folder in _folders():
        with contextlib.suppress(OSError):
            return keep_in(folder, stamp, name, code)
    return None


def chosen_folder(cache: str | Path) -> Path:
    """Where a NUMBA_CACHE_DIR has them."""
    return Path(cache) / "isotherm-kernels"


def keep_in(folder: Path, stamp: str, name: str, code: bytes) -> Path:
    """OSError when that folder cannot be written to."""
    _make(folder)
    is_new = not (folder / stamp).exists()
    (folder / stamp).mkdir(exist_ok=True)
    handle, path = tempfile.mkstemp(prefix=f".{name}.", dir=folder / stamp)
    unfinished = Path(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
            os.fchmod(handle, 0o644)
        unfinished.replace(folder / stamp / name)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if is_new:
        _forget_old_stamps(folder)
    return folder / stamp


def _make(folder: Path) -> None:
    folder.mkdir(mode=0o700 if _is_temporary(folder) else 0o777, parents=True, exist_ok=True)
    if not _is_trusted(folder):
        raise PermissionError(f"folder is another user's folder={folder}")


def _forget_old_stamps(folder: Path) -> None:
    """Another process may do the same; one that needs what goes here compiles it again."""
    ages: list[tuple[int, Path]] = []
    for entry in folder.iterdir():
        if _STAMP_FORM.fullmatch(entry.name):
            with contextlib.suppress(FileNotFoundError):
                ages.append((entry.stat().st_mtime_ns, entry))
    for _, entry in sorted(ages, reverse=True)[STAMPS_MAX:]:
        shutil.rmtree(entry, ignore_errors=True)


def _folders() -> Iterator[Path]:
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield chosen_folder(chosen)
    yield Path(__file__).parent / "__pycache__"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if caches.is_absolute():  # else there is no home
        yield caches / "isotherm" / "kernels"
    yield Path(tempfile.gettempdir()) / f"isotherm-kernels-{os.getuid()}"


def _readable_folders() -> Iterator[Path]:
    return filter(_is_trusted, _folders())


def _is_temporary(folder: Path) -> bool:
    return folder.parent == Path(tempfile.gettempdir())


def _is_trusted(folder: Path) -> bool:
    """Who can write machine code decides what this process runs, and anyone can make a folder among
    the temporary files under the name that this one will look for."""
    if not _is_temporary(folder):
        return True
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_own and not found.st_mode & _WRITABLE_BY_OTHERS
