"""One file over HTTP into one path: resumed where an earlier attempt ended, and kept only if it is right.

Bytes go to ``PATH.incomplete`` beside the target and stay there whatever happens: a cut connection, Ctrl-C, a
full disk, a killed process. The next attempt asks for the rest with a Range request (RFC 9110, section 14).
The finished file is hashed before it takes its name. Knows nothing of repositories or caches of a hub.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from spola.core.errors import ConfigError

__all__ = [
    "Remote",
    "ServerBusy",
    "Watch",
    "check",
    "describe_size",
    "fetch",
    "partial_bytes",
    "partial_path",
]

ATTEMPTS = 5  # in a row that bring nothing
WAIT_S = 0.5  # before the first of them is repeated; doubled each time
_CHUNK = 1 << 20
_PASSING = (429, 500, 502, 503, 504)  # what a server says when trying again may help
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")

# (what is being done: "fetching" or "checking", bytes of the file that are done)
Watch = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Remote:
    """A file to bring. ``size`` in bytes. ``sha256``: of its content; ``git_sha1``: its name as a git blob.

    One of the hashes is checked, SHA-256 first; with neither, only the size is.
    """

    name: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None


def partial_path(target: Path) -> Path:
    return target.with_name(target.name + ".incomplete")


def partial_bytes(target: Path) -> int:
    """How much of ``target`` an earlier attempt has left."""
    try:
        return partial_path(target).stat().st_size
    except OSError:
        return 0


def fetch(
    session: Any, url: str, headers: Mapping[str, str], remote: Remote, target: Path, watch: Watch
) -> None:
    """Bring ``remote`` from ``url`` to ``target``, in a ``session`` of httpx or of its like.

    A redirect to another host is followed without the authorization among ``headers``. Raises ConfigError
    when the disk is full, another process is fetching the same file, or the content is not what it should be;
    the session's own errors when the network fails ``ATTEMPTS`` times without a byte, or the server refuses.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(target)
    with partial.open("ab") as file:
        _lock(file, remote)
        if target.exists():  # another process has finished it meanwhile
            return
        if file.tell() > remote.size:
            file.truncate(0)
        _check_space(target.parent, remote, remote.size - file.seek(0, os.SEEK_END))
        _receive(session, url, headers, remote, file, watch)
        file.flush()
        os.fsync(file.fileno())
        try:
            check(remote, partial, watch)
        except ConfigError:
            partial.unlink(missing_ok=True)
            raise
        os.replace(partial, target)


def check(remote: Remote, path: Path, watch: Watch) -> None:
    """Compare the file at ``path`` with size and hash of ``remote``. Raises ConfigError naming the file."""
    size = path.stat().st_size
    if size != remote.size:
        raise ConfigError(f"{remote.name}: has {size} bytes and should have {remote.size}; pull it again")
    if remote.sha256 is not None:
        state, wanted, kind = hashlib.sha256(), remote.sha256, "SHA-256"
    elif remote.git_sha1 is not None:
        state, wanted, kind = (
            hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False),
            remote.git_sha1,
            "hash",
        )
    else:
        return
    done = 0
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            state.update(chunk)
            done += len(chunk)
            watch("checking", done)
    if state.hexdigest() != wanted:
        raise ConfigError(
            f"{remote.name}: its {kind} is {state.hexdigest()} and should be {wanted}: it was damaged "
            "on the way or replaced, and is removed; pull it again"
        )


def _receive(
    session: Any, url: str, headers: Mapping[str, str], remote: Remote, file: IO[bytes], watch: Watch
) -> None:
    """Append to ``file`` until it has all bytes; goes on after a cut for as long as each try brings some."""
    passing = _passing_errors(session)
    failed = 0
    while (start := file.seek(0, os.SEEK_END)) < remote.size:
        try:
            _stream(session, url, headers, remote, file, watch)
            problem = None
        except passing as error:
            problem = error
        finally:
            file.flush()
        if problem is None and file.tell() >= remote.size:
            return
        failed = 0 if file.tell() > start else failed + 1
        if failed >= ATTEMPTS:
            raise problem or ConfigError(
                f"{remote.name}: the server ends its answer at {start} of {remote.size} bytes; pull again"
            )
        time.sleep(WAIT_S * 2 ** max(0, failed - 1))


def _stream(
    session: Any, url: str, headers: Mapping[str, str], remote: Remote, file: IO[bytes], watch: Watch
) -> None:
    start = file.tell()
    # Compressed, neither ranges nor sizes would mean what they say.
    asked = dict(headers) | {"Accept-Encoding": "identity"}
    if start:
        asked["Range"] = f"bytes={start}-"
    with session.stream("GET", url, headers=asked, follow_redirects=True) as response:
        if response.status_code in _PASSING:
            raise ServerBusy(response.status_code)
        if response.status_code == 416:  # what is here does not fit the file there
            file.truncate(0)
            return
        _raise_for_status(response)
        if start and not _continues(response, start, remote):
            file.truncate(0)  # a server without ranges sends all of it again
            start = 0
        done = start
        watch("fetching", done)
        for chunk in response.iter_raw():
            done += len(chunk)
            if done > remote.size:
                file.truncate(0)
                raise ConfigError(
                    f"{remote.name}: the server sends more than {remote.size} bytes; pull again"
                )
            try:
                file.write(chunk)
            except OSError as error:
                raise _disk(error, remote) from None
            watch("fetching", done)


class ServerBusy(Exception):
    """The server's answer is an error of a kind that passes."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


def _continues(response: Any, start: int, remote: Remote) -> bool:
    """Whether the answer is the part asked for: from ``start``, of a file of the right size."""
    match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status_code != 206 or match is None:
        return False
    return int(match[1]) == start and match[2] in ("*", str(remote.size))


def _raise_for_status(response: Any) -> None:
    from huggingface_hub import utils  # its errors say what a hub's refusal means

    if response.status_code >= 400:
        response.read()
    library: Any = utils
    library.hf_raise_for_status(response)


def _passing_errors(session: Any) -> tuple[type[Exception], ...]:
    """What a cut connection raises: the session's library is httpx, or its successor."""
    library = sys.modules[type(session).__module__.split(".")[0]]
    transport: type[Exception] = library.TransportError
    return (transport, ServerBusy)


def _lock(file: IO[bytes], remote: Remote) -> None:
    """Two processes must not append to one file. Where the file system has no locks, nothing is held."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise ConfigError(
                f"{remote.name}: another process is fetching it; wait for it, then ask again"
            ) from None


def _check_space(folder: Path, remote: Remote, needed: int) -> None:
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise ConfigError(
                f"{remote.name}: {describe_size(needed)} are to come and {describe_size(free)} are free in "
                f"{folder}; make room, or set HF_HOME to a larger disk"
            )


def _disk(error: OSError, remote: Remote) -> ConfigError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigError(f"{remote.name}: the disk is full; make room and pull again, it goes on from here")
    return ConfigError(f"{remote.name}: cannot be written: {error.strerror}")


def describe_size(count: float) -> str:
    """Bytes for a person, in decimal units."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
