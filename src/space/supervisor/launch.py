"""Become another uid, see the program's files even where they lie under a closed directory, and run a program.

``python -m space.supervisor.launch --uid N --gid N [--group N]... [--show PATH]... -- PROGRAM`` is run by root.
Python and this source may lie below a directory that other uids cannot enter (``/root`` is 0700). Instead of opening
that directory, a private mount namespace lays an empty tmpfs over the first closed ancestor and puts exactly the shown
paths back.
It imports only the standard library, as it runs before every start of a part.
"""

import argparse
import ctypes
import os
import signal
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 1 << 19
_MS_NOSUID_NODEV = 0x2 | 0x4
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


def closed_ancestor(path: Path) -> Path | None:
    """Return the first directory on the way to ``path`` that an unrelated uid cannot enter; ACLs are not looked at."""
    for directory in [*reversed(path.parents), path]:
        if directory.is_dir() and not directory.stat().st_mode & stat.S_IXOTH:
            return directory
    return None


def code_paths() -> list[Path]:
    """Where the running interpreter, its packages and this source lie."""
    source = Path(__file__).resolve().parents[2]
    # The directory as it is called and as it really is: a .venv's python is a symbolic link into base_prefix.
    found = [Path(sys.prefix), Path(sys.base_prefix), source, Path(sys.executable).resolve().parent]
    outer: list[Path] = []
    for path in sorted({p.absolute() for p in found}, key=lambda p: len(p.parts)):
        if not any(path.is_relative_to(other) for other in outer):
            outer.append(path)
    return outer


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def show_only(paths: Iterable[Path]) -> None:
    """Lay a tmpfs over each closed ancestor of ``paths`` and bind exactly those paths back below it."""
    hidden = [(path, ancestor) for path in paths if (ancestor := closed_ancestor(path)) is not None]
    if not hidden:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "unshare")
    _mount("none", "/", "", _MS_REC | _MS_SLAVE)
    # Held open before anything is covered: afterwards their names lead into the tmpfs.
    held = [(os.open(path, os.O_PATH | os.O_CLOEXEC), path) for path, _ in hidden]
    for ancestor in {ancestor for _, ancestor in hidden}:
        _mount("tmpfs", str(ancestor), "tmpfs", _MS_NOSUID_NODEV, "mode=0755,size=64k")
    for descriptor, path in held:
        path.mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", str(path), "", _MS_BIND | _MS_REC)
        os.close(descriptor)


def become(uid: int, gid: int, groups: Iterable[int] = ()) -> None:
    """Drop to ``uid`` for good: only the given groups, no way back by a setuid program, and end with the parent."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.setgroups(list(groups))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    # After the change of uid, which clears it.
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def main() -> None:
    """Read the arguments, drop and run."""
    parser = argparse.ArgumentParser(prog="space-launch")
    parser.add_argument("--uid", type=int, required=True)
    parser.add_argument("--gid", type=int, required=True)
    parser.add_argument("--group", type=int, action="append", default=[])
    parser.add_argument("--show", type=Path, action="append", default=[])
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    show_only(options.show)
    os.chdir("/")
    os.umask(0o077)
    become(options.uid, options.gid, options.group)
    os.execvp(options.program[0], options.program)


if __name__ == "__main__":
    main()
