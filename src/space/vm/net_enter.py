"""Enters, makes and leaves network namespaces by system call, and opens taps in them."""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNET = 0x40000000  # linux/sched.h
MS_BIND = 0x1000  # linux/mount.h
MNT_DETACH = 2
TUNSETIFF, TUNSETPERSIST = 0x400454CA, 0x400454CB  # linux/if_tun.h
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare_into(path: Path) -> None:
    """Give this thread a new network namespace and bind it to the (new) file `path`. The thread must end afterwards."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o444))
    _check(_libc.unshare(CLONE_NEWNET), "unshare")
    _check(_libc.mount(b"/proc/thread-self/ns/net", os.fsencode(path), None, MS_BIND, None), f"mount {path}")


def enter(path: Path) -> None:
    """Move this thread into the namespace at `path` for good. The thread must end afterwards."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(handle, CLONE_NEWNET), f"setns {path}")
    finally:
        os.close(handle)


@contextlib.contextmanager
def visiting(path: Path) -> Iterator[None]:
    """Be in the namespace at `path` for a few system calls, on this thread. There must be no await inside.

    A thread that cannot come back would do its later work without the host's network, so the process ends there.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(path)
        try:
            yield
        finally:
            if _libc.setns(home, CLONE_NEWNET) != 0:
                os.abort()
    finally:
        os.close(home)


def open_socket(path: Path) -> socket.socket:
    """A non-blocking TCP socket that belongs to the namespace at `path`."""
    with visiting(path):
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def open_tap(name: str, *, persist: bool = False) -> int:
    """Attach to the tap `name` of this thread's namespace, made if it is not there. Gives the descriptor."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
        if persist:
            fcntl.ioctl(handle, TUNSETPERSIST, 1)
    except OSError:
        os.close(handle)
        raise
    return handle


def remove(path: Path) -> None:
    """Unbind the namespace and remove its file; nothing there is not an error."""
    if _libc.umount2(os.fsencode(path), MNT_DETACH) != 0:
        number = ctypes.get_errno()
        # EINVAL: a file where the mount was never made or is gone already
        if number not in (22, 2):
            raise OSError(number, f"umount {path}: {os.strerror(number)}")
    path.unlink(missing_ok=True)
