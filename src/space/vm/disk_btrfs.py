"""Btrfs by ioctl (numbers and layouts of linux/btrfs.h), and the commands run for the pool."""

import asyncio
import fcntl
import os
import shlex
import struct
from pathlib import Path

_SUBVOL_CREATE = 0x5000940E  # _IOW(0x94, 14, 4096 bytes)
_SNAP_DESTROY = 0x5000940F
_SYNC = 0x9408  # _IO(0x94, 8)
_SNAP_CREATE_V2 = 0x50009417
_SUBVOL_GETFLAGS = 0x80089419  # _IOR(0x94, 25, u64)
_SUBVOL_SETFLAGS = 0x4008941A
_RDONLY = 1 << 1
_SUPER_MAGIC = 0x9123683E
_ROOT_INODE = 256  # the root of every subvolume has this inode number

COMMAND_TIMEOUT_S = 120.0  # mkfs of a terabyte takes seconds; preallocation is not by command


class DiskError(Exception):
    """The pool or one of its parts could not be made, used or removed; the text says which and why."""


def is_btrfs(path: Path) -> bool:
    """Whether `path` lies on btrfs (by mountinfo: Python's statvfs has no type)."""
    path = path.resolve()
    best, kind = -1, ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        mount = Path(fields[4].encode().decode("unicode_escape"))
        if path.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), fields[fields.index("-") + 1]
    return kind == "btrfs"


def is_subvolume(path: Path) -> bool:
    """Whether `path`, known to be on btrfs, is the root of a subvolume."""
    return path.is_dir() and not path.is_symlink() and path.stat().st_ino == _ROOT_INODE


def create(path: Path) -> None:
    """Make an empty subvolume."""
    with _Directory(path.parent) as parent:
        fcntl.ioctl(parent, _SUBVOL_CREATE, _arguments("q4088s", 0, path))


def snapshot(source: Path, path: Path) -> None:
    """Make `path` a writable snapshot of the subvolume `source`."""
    with _Directory(source) as origin, _Directory(path.parent) as parent:
        fcntl.ioctl(parent, _SNAP_CREATE_V2, _arguments("q48x4040s", origin, path))


def destroy(path: Path) -> None:
    """Remove a subvolume with all in it; nothing there is not an error. Its space comes back a little later."""
    if not path.exists():
        return
    with _Directory(path.parent) as parent:
        try:
            fcntl.ioctl(parent, _SNAP_DESTROY, _arguments("q4088s", 0, path))
        except FileNotFoundError:
            return


def commit(path: Path) -> None:
    """Write the file system's state out now; frees what the cleaner has dropped and wakes the cleaner again."""
    with _Directory(path) as handle:
        fcntl.ioctl(handle, _SYNC)


def make_read_only(path: Path) -> None:
    """Forbid any further change to the subvolume."""
    with _Directory(path) as handle:
        flags = struct.unpack("Q", fcntl.ioctl(handle, _SUBVOL_GETFLAGS, bytes(8)))[0]
        fcntl.ioctl(handle, _SUBVOL_SETFLAGS, struct.pack("Q", flags | _RDONLY))


def _arguments(layout: str, handle: int, path: Path) -> bytearray:
    # mutable: Python hands at most 1024 immutable bytes to an ioctl
    return bytearray(struct.pack(layout, handle, path.name.encode()))


class _Directory:
    """A directory's descriptor for the length of a `with`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._handle = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._handle

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


async def run(*argv: str) -> str:
    """Run a command; its output, or DiskError with the line to paste and what it said."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError:
        raise DiskError(f"{argv[0]} is not installed") from None
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            out, err = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode != 0:
        raise DiskError(f"`{shlex.join(argv)}` failed ({process.returncode}): {err.decode(errors='replace').strip()}")
    return out.decode()
