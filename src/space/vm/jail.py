"""What the spawner's child does between fork and execve: cgroup, namespaces, a root of nothing but QEMU's own files.

Everything here runs in a forked, single-threaded process that is about to be replaced. The root is emptied altogether
by `empty_root` once QEMU has read what it needs (decision 0003).
"""

import contextlib
import os
import resource
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from space.vm import linux

FIRST_FD = 3
NOFILE = 128  # QEMU in this shape holds about 25 descriptors
MEMLOCK = 65536  # nothing is locked; the kernel's small default
DEVICES = {"null": (1, 3), "urandom": (1, 9), "kvm": (10, 232)}  # Linux's fixed device numbers
MERGED = ("bin", "lib", "lib64", "sbin")  # symbolic links into /usr on a merged system, copied as they are


@dataclass(frozen=True)
class Plan:
    """One jailed process to start, as the spawner's client sends it."""

    argv: list[str]
    root: str  # an existing empty folder; the tmpfs is mounted there in a private namespace
    binds: dict[str, str]  # path inside -> path on the host, read-only
    devices: list[str]
    netns: str | None
    cgroup: list[str]
    uid: int
    fsize: int
    nproc: int

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "Plan":
        return cls(**fields)


def enter_groups(plan: Plan) -> None:
    """Join the control group, the sandbox's network and fresh namespaces; the next fork is their first process."""
    for folder in plan.cgroup:
        Path(folder, "cgroup.procs").write_text("0")
    if plan.netns:
        fd = os.open(plan.netns, os.O_RDONLY | os.O_CLOEXEC)
        linux.setns(fd, linux.CLONE_NEWNET)
        os.close(fd)
    network = 0 if plan.netns else linux.CLONE_NEWNET  # never the host's
    linux.unshare(network | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS)


def run(plan: Plan, fds: list[int], log: int) -> None:
    """Become the jailed process; only returns by raising."""
    os.setsid()
    os.umask(0o022)  # the root's folders must be readable by the machine's uid
    _build_root(plan)
    os.umask(0o077)
    _place_fds(fds, log)
    _limit(plan)
    _drop(plan.uid)
    os.execve(plan.argv[0], plan.argv, {"LC_ALL": "C"})


def _build_root(plan: Plan) -> None:
    root = plan.root
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    _tmpfs(root)
    for top in ("usr", "boot", "dev"):
        os.mkdir(f"{root}/{top}")
        # Each top is its own mount so that emptying the root later takes four unmounts, not one for each library.
        _tmpfs(f"{root}/{top}", nodev=top != "dev")
    for name in MERGED:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{root}/{name}")
    for inside, source in plan.binds.items():
        _bind(source, root + inside)
    for name in plan.devices:
        _device(f"{root}/dev/{name}", *DEVICES[name], plan.uid)
    os.mkdir(f"{root}/proc")
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", f"{root}/proc", "proc", flags, "hidepid=2")
    for top in ("usr", "boot", "dev"):
        nodev = 0 if top == "dev" else linux.MS_NODEV
        read_only = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | nodev
        linux.mount("none", f"{root}/{top}", None, read_only)
    os.chdir(root)
    # Both arguments the same: the old root is stacked on the new one and can be unmounted without a folder for it.
    linux.pivot_root(".", ".")
    linux.umount(".", linux.MNT_DETACH)
    os.chdir("/")


def _tmpfs(where: str, *, nodev: bool = True) -> None:
    flags = linux.MS_NOSUID | (linux.MS_NODEV if nodev else 0)
    linux.mount("jail", where, "tmpfs", flags, "mode=0755,size=1m,nr_inodes=1024")


def _bind(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if os.path.isdir(source):
        os.makedirs(target, mode=0o755, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
    linux.mount(source, target, None, linux.MS_BIND)
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("none", target, None, flags)


def _device(path: str, major: int, minor: int, uid: int) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(major, minor))
    os.chown(path, uid, uid)


def _place_fds(fds: list[int], log: int) -> None:
    """Put the given descriptors at 3, 4, …, standard input on /dev/null, output on the log, and close all else."""
    high = FIRST_FD + len(fds) + 64  # first out of the way, so that no dup2 overwrites one still to be moved
    moved = [_move(fd, high + i) for i, fd in enumerate([*fds, log])]
    for i, fd in enumerate(moved[:-1]):
        os.dup2(fd, FIRST_FD + i, inheritable=True)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0, inheritable=True)
    os.dup2(moved[-1], 1, inheritable=True)
    os.dup2(moved[-1], 2, inheritable=True)


def _move(fd: int, to: int) -> int:
    os.dup2(fd, to, inheritable=False)
    return to


def _limit(plan: Plan) -> None:
    limits = {
        resource.RLIMIT_NOFILE: NOFILE,
        resource.RLIMIT_CORE: 0,  # a core would hold the guest's memory
        resource.RLIMIT_FSIZE: plan.fsize,
        resource.RLIMIT_NPROC: plan.nproc,
        resource.RLIMIT_MEMLOCK: MEMLOCK,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for which, value in limits.items():
        resource.setrlimit(which, (value, value))


def _drop(uid: int) -> None:
    os.setgroups([])
    linux.drop_capability_bounds()
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    linux.no_new_privileges()


def empty_root(pid: int) -> None:
    """Enter the process's mount namespace, unmount all of it and remove what is left; the caller is a forked helper."""
    mounts = [line.split(" ")[4] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    tops = sorted({"/" + where.split("/")[1] for where in mounts if where != "/"})
    fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    here = os.stat("/proc/self/ns/mnt")
    if os.fstat(fd).st_ino == here.st_ino:
        raise PermissionError(f"process {pid} has no mount namespace of its own")
    linux.setns(fd, linux.CLONE_NEWNS)
    os.chdir("/")
    for top in tops:
        linux.umount(top, linux.MNT_DETACH | linux.UMOUNT_NOFOLLOW)
    for entry in os.scandir("/"):
        with contextlib.suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)
    linux.mount("none", "/", None, linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV)
