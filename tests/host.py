"""What this host holds that a machine could leave behind: processes, namespaces, taps, mounts, loops, cgroups, files.

`HostState.capture()` before and after, `diff(before, after)` gives readable lines. `allow(pattern)` names resources
that a session keeps on purpose. While another test run is on the same host only what is surely ours is compared. A
capture reads a few files of /proc and /sys and takes a few milliseconds.
"""

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

PROGRAMS = ("qemu-system", "space", "postgres")
# Kept on purpose by the session: patterns (as in fnmatch) over the lines that `diff` would print.
_allowed: set[str] = set()


def allow(*patterns: str) -> None:
    """Leave out of every later comparison the lines that match, such as ``*mount /tmp/session-pool*``."""
    _allowed.update(patterns)


@dataclass(frozen=True)
class HostState:
    """Names of everything of interest on the host at one moment."""

    processes: frozenset[str]
    namespaces: frozenset[str]
    links: frozenset[str]
    mounts: frozenset[str]
    loops: frozenset[str]
    cgroups: frozenset[str]
    files: frozenset[str]
    home: str
    shared: bool  # another test run is on this host: its resources come and go too

    @classmethod
    def capture(cls, directories: Iterable[Path] = (), *, home: str = "") -> "HostState":
        """Look at the host; `directories` are listed whole, other parts by their names."""
        processes, spaces, shared = _processes(home)
        return cls(
            processes=frozenset(processes),
            namespaces=frozenset([*spaces, *_names(Path("/run/netns"))]),
            links=frozenset(_names(Path("/sys/class/net"))),
            mounts=frozenset(_mounts()),
            loops=frozenset(_loops()),
            cgroups=frozenset(_cgroups()),
            files=frozenset(str(path) for directory in directories for path in directory.rglob("*")),
            home=home,
            shared=shared,
        )


def diff(before: HostState, after: HostState) -> list[str]:
    """A line for everything that is there after and was not before, without what is allowed."""
    shared = before.shared or after.shared
    lines = [
        f"left behind: {field.name.removesuffix('s')} {item}"
        for field in fields(HostState)
        if field.name not in ("home", "shared")
        for item in sorted(getattr(after, field.name) - getattr(before, field.name))
        if not shared or field.name in ("processes", "files") or _ours(str(item), after.home)
    ]
    return [line for line in lines if not any(fnmatch.fnmatch(line, pattern) for pattern in _allowed)]


def _ours(item: str, home: str) -> bool:
    # tests put their process id into the names of namespaces and groups
    return bool(home and home in item) or re.search(rf"(?<!\d){os.getpid()}(?!\d)", item) is not None


def _names(directory: Path) -> list[str]:
    return os.listdir(directory) if directory.is_dir() else []


def _processes(home_dir: str) -> tuple[list[str], list[str], bool]:
    """Descendants of this process and, wherever they hang now, our programs that name a path under `home`."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    found, spaces, shared = [], set(), False
    above = set(_ancestors(os.getpid(), parents))
    home = _link("/proc/self/ns/net")
    for pid in parents:
        ours = os.getpid() in _ancestors(pid, parents)
        line = _command(pid)
        program = os.path.basename(line.split(" ", 1)[0])
        if line.startswith("postgres: "):
            continue  # a server's backends come and go with its connections; the server itself is compared
        shared = shared or (
            ("pytest" in line or "-m space." in line) and not ours and pid not in above and pid != os.getpid()
        )
        if ours or (program.startswith(PROGRAMS) and home_dir and home_dir in line):
            found.append(f"{pid} {line[:200]}")
            space = _link(f"/proc/{pid}/ns/net")
            if space not in (home, ""):
                spaces.add(space)
    return found, sorted(spaces), shared


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        yield line.split()[4]


def _loops() -> Iterator[str]:
    for entry in Path("/sys/block").glob("loop*"):
        try:
            yield f"{entry.name} {(entry / 'loop/backing_file').read_text().strip()}"
        except OSError:
            continue


def _cgroups() -> Iterator[str]:
    """Groups whose name starts with space and those one below them, within two levels of each hierarchy."""
    root = Path("/sys/fs/cgroup")
    for top in (root, *_folders(root)):
        for group in _folders(top):
            if group.name.startswith("space"):
                yield str(group)
                yield from (str(inner) for inner in _folders(group))


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # gone meanwhile: another run's
        return []
