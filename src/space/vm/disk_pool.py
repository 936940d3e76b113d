"""Brings the btrfs pool up and down: the state directory itself, or a preallocated file behind a loop device.

The loop file is mounted without discard: giving blocks back to the host would undo the preallocation, and the pool
could then run full at any moment that the host does. A pool keeps the size it was made with.
"""

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

from space.vm import disk_btrfs
from space.vm.disk_btrfs import DiskError, run
from space.vm.threads import run_whole

MIB = 1 << 20
HOST_RESERVE_MIB = 2048  # left to the host: its logs, its database and the next package upgrade
SMALLEST_MIB = 256  # below this btrfs itself has no room to work
# No device nodes, set-uid files or programs of a guest's making are ever honoured on the host.
MOUNT_OPTIONS = "nosuid,nodev,noexec,noatime,nodiscard"


class DiskFull(DiskError):
    """There is less room than must stay free; free_mib and floor_mib say how much."""

    def __init__(self, what: str, free_mib: int, floor_mib: int) -> None:
        super().__init__(f"{what}: {free_mib} MiB free, {floor_mib} MiB must stay free")
        self.free_mib = free_mib
        self.floor_mib = floor_mib


async def mount(state_dir: Path, wanted_mib: int) -> Path:
    """Find or make the pool; gives its path. Safe to call when it is mounted already."""
    pool, image = state_dir / "pool", state_dir / "pool.btrfs"
    pool.mkdir(mode=0o700, parents=True, exist_ok=True)
    if pool.is_mount() or (disk_btrfs.is_btrfs(state_dir) and not image.exists()):
        return pool
    if not image.exists():
        await _make_image(image, wanted_mib)
    device = await _loop_of(image) or await _attach(image)
    try:
        await run("mount", "-t", "btrfs", "-o", MOUNT_OPTIONS, device, str(pool))
    except BaseException:
        with contextlib.suppress(DiskError):
            await run("losetup", "--detach", device)
        raise
    return pool


async def unmount(state_dir: Path) -> None:
    """Unmount the pool and detach its loop device; nothing mounted is not an error."""
    pool, image = state_dir / "pool", state_dir / "pool.btrfs"
    if not image.exists():
        return
    if pool.is_mount():
        await run("umount", str(pool))
    while device := await _loop_of(image):
        await run("losetup", "--detach", device)
        for _ in range(100):  # detaching ends a moment after the command
            if await _loop_of(image) != device:
                break
            await asyncio.sleep(0.02)
        else:
            raise DiskError(f"loop device {device} of {image} is still in use")


async def _make_image(image: Path, wanted_mib: int) -> None:
    free = shutil.disk_usage(image.parent).free // MIB
    size = min(wanted_mib, free - HOST_RESERVE_MIB)
    if size < SMALLEST_MIB:
        raise DiskFull(f"no room for a pool at {image}", free, HOST_RESERVE_MIB + SMALLEST_MIB)
    fresh = image.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    try:
        await run_whole(lambda: _allocate(fresh, size * MIB))
        # -K: no discard, it would punch out what was just allocated. Single metadata: one host file, one fate.
        await run("mkfs.btrfs", "--quiet", "-K", "--metadata", "single", "--data", "single", str(fresh))
        fresh.rename(image)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _allocate(path: Path, size: int) -> None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)


async def _loop_of(image: Path) -> str | None:
    lines = (await run("losetup", "--associated", str(image), "--noheadings", "--output", "NAME")).split()
    return lines[0] if lines else None


async def _attach(image: Path) -> str:
    try:
        # direct: else every block is cached twice, once for the pool and once for its file
        return (await run("losetup", "--find", "--show", "--direct-io=on", str(image))).strip()
    except DiskError:
        if left := await _loop_of(image):  # attached, but the host's file system refuses direct access
            return left
        return (await run("losetup", "--find", "--show", str(image))).strip()
