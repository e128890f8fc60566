"""The cache of kernels' machine code between processes, and the stamps that decide its validity.

A kernel inlines functions of other modules of this package. So all kernels share one stamp: a
digest of every source file here, the versions of the compilers, the processor, and those settings
of Numba that change the code. It depends on content only: a wheel, a checkout and a copied folder
with equal content share machine code, and an edit, an upgrade or another processor finds none. A
cache folder has one folder per stamp, with one file per kernel. All of these folders are read; the
first writable one is written. None of them is used if another user can write to it or to a folder
above it, because machine code from the cache runs in this process (docs/decisions/0208):

    $NUMBA_CACHE_DIR/isotherm-kernels             like Numba's own cache
    __pycache__ beside the sources                goes with an environment that is copied or packed
    $XDG_CACHE_HOME/isotherm/kernels              or ~/.cache
    isotherm-kernels-<user id> in the temporary directory

A file is replaced as a whole, and starts with the digest of its rest. A file that a crash or
another writer left is either complete or ignored. Of processes that find no machine code at the
same time, like the workers of a job, one compiles: it holds a lock on a file beside the stamps'
folders, which the system releases when the process ends. Importing this module does not load Numba.
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

# A folder keeps this number of stamps, the newest ones. Versions, environments and processors that
# share the folder need one each. A stamp takes 2 MB.
STAMPS_MAX = 8

# A process waits this long for another one that compiles the same kernel, and then compiles it
# itself. A kernel takes a second of CPU time.
WAIT_MAX_S = 60.0
_POLL_S = 0.05
_LOWEST_PRIORITY = 19

_PACKAGE = __package__
_COMPILER = ("numba", "llvmlite", "numpy")
_DIGEST_SIZE = hashlib.sha256().digest_size
_STAMP_FORM = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_OWN_FOLDER = 0o755
_BESIDE_SOURCES = Path(__file__).parent / "__pycache__"


def source_digest(sources: Mapping[str, bytes], versions: Iterable[str]) -> str:
    """The first half of a stamp: the sources and the versions of the compilers."""
    parts = [part for name in sorted(sources) for part in (name.encode(), sources[name])]
    return _digest([*parts, *(version.encode() for version in versions)])


def target_digest(target: Iterable[object]) -> str:
    """The second half of a stamp: the processor and the settings."""
    return _digest([repr(part).encode() for part in target])


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        # The length keeps parts apart: otherwise "ab" and "c" would give the digest of "a" and
        # "bc".
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def read_sources() -> dict[str, bytes]:
    """The modules of this package, from a directory or a zip file."""
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
    except metadata.PackageNotFoundError:  # installed without metadata
        return str(importlib.import_module(name).__version__)


@functools.cache
def current_source_digest() -> str:
    """The digest when this process first needed it."""
    return source_digest(read_sources(), compiler_versions())


def is_anything_kept() -> bool:
    """Whether there is machine code of these sources, perhaps for another processor.

    For callers that do not load Numba, which alone knows the processor where there are no images.
    """
    prefix = current_source_digest()
    return any(
        folder.is_dir() and any(folder.glob(f"{prefix}-*/*")) for folder in _readable_folders()
    )


def read(stamp: str, name: str) -> bytes | None:
    """The cached machine code of a kernel under this stamp; None if there is none."""
    for folder in _readable_folders():
        # A folder may be missing or unreadable, or another process may remove the file now.
        with contextlib.suppress(OSError):
            if not _holds_own(folder, stamp, name):
                _warn_of_writers(folder / stamp)
                continue
            content = (folder / stamp / name).read_bytes()
            kept = content[_DIGEST_SIZE:]
            if hashlib.sha256(kept).digest() == content[:_DIGEST_SIZE]:
                return kept
            logger.info(
                "machine code is damaged and is compiled again file=%s", folder / stamp / name
            )
    return None


def is_kept(stamp: str, name: str) -> bool:
    return any((folder / stamp / name).exists() for folder in _readable_folders())


@contextlib.contextmanager
def made_by_one(stamp: str, name: str, wait_max_s: float = WAIT_MAX_S) -> Iterator[None]:
    """Wait while another process compiles the same kernel, whose machine code may be cached
    afterwards.

    Waits for at most `wait_max_s`, and not at all without a lock. A process of the lowest priority
    neither waits nor makes others wait: it would delay processes that need the kernel now.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) >= _LOWEST_PRIORITY:
        yield
        return
    with contextlib.ExitStack() as stack:
        lock = _open_lock(f".{stamp}.{name}.lock")
        if lock is not None:
            stack.callback(os.close, lock.descriptor)
            if _is_taken(lock.descriptor, wait_max_s):
                # A process that opened the file before it is removed compiles too: twice the work,
                # no harm.
                stack.callback(lock.path.unlink, missing_ok=True)
        yield


class _LockFile(NamedTuple):
    descriptor: int
    path: Path


def _open_lock(name: str) -> _LockFile | None:
    """Open a lock file in the folder that machine code is written to; None if none is writable."""
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
            _log_waiting()
            time.sleep(_POLL_S)  # noqa: TID251 - this package has no Clock
        except OSError:  # a file system without locks
            return False
        else:
            return True
    return False


@functools.cache
def _log_waiting() -> None:
    logger.info("waiting for another process that compiles the kernels")


def keep(stamp: str, name: str, code: bytes) -> Path | None:
    """Write machine code to the cache; returns its folder, or None if no folder is writable.

    Nothing is written if the sources changed after they were read: the code may be of either.
    """
    if source_digest(read_sources(), compiler_versions()) != current_source_digest():
        return None
    for folder in _folders():
        with contextlib.suppress(OSError):
            return keep_in(folder, stamp, name, code)
    return None


def chosen_folder(cache: str | Path) -> Path:
    """The cache folder for a value of NUMBA_CACHE_DIR."""
    return Path(cache) / "isotherm-kernels"


def keep_in(folder: Path, stamp: str, name: str, code: bytes) -> Path:
    """Write to this folder. Raises OSError if it is not writable."""
    _make(folder)
    is_new = not (folder / stamp).exists()
    # Readers never see a part of a file: it is written under a temporary name and then renamed.
    (folder / stamp).mkdir(mode=_OWN_FOLDER, exist_ok=True)
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
    if _is_temporary(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    else:
        folder.mkdir(mode=_OWN_FOLDER, parents=True, exist_ok=True)
    if not _is_trusted(folder):
        _warn_of_writers(folder)
        raise PermissionError(f"other users can write to the folder folder={folder}")


def _forget_old_stamps(folder: Path) -> None:
    """Safe with other processes: one that needs a removed stamp compiles it again."""
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
    yield _BESIDE_SOURCES
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if caches.is_absolute():  # relative if there is no home directory
        yield caches / "isotherm" / "kernels"
    yield Path(tempfile.gettempdir()) / f"isotherm-kernels-{os.getuid()}"


def _readable_folders() -> Iterator[Path]:
    for folder in _folders():
        if _is_trusted(folder):
            yield folder
        elif folder.is_dir():
            _warn_of_writers(folder)


def _is_temporary(folder: Path) -> bool:
    return folder.parent == Path(tempfile.gettempdir())


def _is_trusted(folder: Path) -> bool:
    """Whether nobody but this user and root can put a file into the folder, or another folder into
    its place.

    Whoever can write to the folder of the sources can change the program itself, so the folder
    beside them only has to be as safe as they are.
    """
    try:
        if folder == _BESIDE_SOURCES:
            above, here = folder.parent.stat(), folder.stat()
            wider = here.st_mode & ~above.st_mode & _WRITABLE_BY_OTHERS
            return here.st_uid in (above.st_uid, 0, os.getuid()) and not wider
        # The links on the way count, and what they lead to.
        paths = {folder.absolute(), folder.resolve(strict=True)}
        return all(
            _is_own(path) and all(_is_own(parent, as_parent=True) for parent in path.parents)
            for path in paths
        )
    except OSError:
        return False


def _holds_own(folder: Path, stamp: str, name: str) -> bool:
    """Whether the file, in a folder that `_is_trusted`, is as safe as the folder.

    Raises OSError.
    """
    if folder == _BESIDE_SOURCES:
        return True
    return _is_own(folder / stamp) and _is_own(folder / stamp / name)


def _is_own(path: Path, *, as_parent: bool = False) -> bool:
    """Whether the path is this user's or root's, and no other user can write to it.

    In a folder with the sticky bit, like /tmp, others can create entries, but not replace those of
    this user. So such a parent does no harm. Raises OSError.
    """
    status = path.lstat()
    if status.st_uid not in (0, os.getuid()):
        return False
    if stat.S_ISLNK(status.st_mode) or (as_parent and status.st_mode & stat.S_ISVTX):
        return True
    return not status.st_mode & _WRITABLE_BY_OTHERS


@functools.cache
def _warn_of_writers(folder: Path) -> None:
    logger.warning(
        "machine code of a folder is not used, since other users can write to it or above it"
        " folder=%s hint='chmod go-w, or set NUMBA_CACHE_DIR to a folder of your own'",
        folder,
    )
