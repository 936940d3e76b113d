"""The disks of templates and sandboxes: one btrfs subvolume each, a sandbox's a snapshot of its template's.

pool/templates/<digest>/  read-only subvolume {rootfs.ext4, vmlinux, initramfs, manifest.json}
pool/tags/<name>/<tag>    symlink to it
pool/sandboxes/<id>/      snapshot; its rootfs.ext4 is the machine's disk
Names with a leading dot are unfinished and swept by `open`. The quota of a sandbox is the size of its image. The sum of
all may exceed the pool; then the floor refuses new ones, but running guests may still fill what is left.
"""

import asyncio
import errno
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from space.vm import disk_btrfs, disk_pool
from space.vm.disk_btrfs import DiskError
from space.vm.disk_pool import MIB, DiskFull
from space.vm.threads import run_whole

__all__ = ["DiskError", "DiskFull", "Store"]

T = TypeVar("T")

ROOTFS = "rootfs.ext4"
# One commit to mark, one to drop, one to free, two spare: a pool that is really full says so in half a second.
RECLAIM_TRIES = 5
RECLAIM_PAUSE_S = 0.1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[0-9a-f]{32,128}")


class Store:
    """The pool of one host. One process owns it."""

    def __init__(self, state_dir: Path, *, size_mib: int = 20480, floor_mib: int = 1024) -> None:
        self._state_dir = state_dir
        self._size_mib = size_mib
        self._floor_mib = floor_mib
        self.pool = state_dir / "pool"
        self._templates = self.pool / "templates"
        self._tags = self.pool / "tags"
        self._sandboxes = self.pool / "sandboxes"
        self._lock = asyncio.Lock()
        self._live: set[str] = set()  # unfinished names of this life, not to be swept

    async def open(self) -> None:
        """Mount the pool, making it the first time, and sweep what an earlier life left unfinished."""
        async with self._lock:
            await disk_pool.mount(self._state_dir, self._size_mib)
            for directory in (self._templates, self._tags, self._sandboxes):
                directory.mkdir(mode=0o700, exist_ok=True)
            await self._guarded("sweep the pool", self._sweep)

    async def close(self) -> None:
        """Unmount the pool and detach its loop device; raises DiskError if somebody still uses it."""
        async with self._lock:
            await disk_pool.unmount(self._state_dir)

    def free_mib(self) -> int:
        """Free space of the pool in MiB; that of deleted disks comes back with a commit, which `clone` asks for."""
        return shutil.disk_usage(self.pool).free // MIB

    # -- sandboxes

    async def clone(self, template_dir: Path, sandbox_id: str, disk_mib: int) -> Path:
        """A new disk from the template, at least `disk_mib` large; gives the image's path (root's, mode 0600).

        Raises DiskFull below the floor, DiskError if the id is taken or the template's image is larger than asked.
        """
        target = self._sandboxes / _checked(sandbox_id)
        await self._refuse_below_floor(f"no disk for sandbox {sandbox_id}")
        if target.exists():
            raise DiskError(f"sandbox {sandbox_id} has a disk already")
        fresh = self._sandboxes / f".{sandbox_id}.{secrets.token_hex(4)}"
        self._live.add(fresh.name)
        try:
            await self._guarded(
                f"clone {template_dir.name} for {sandbox_id}",
                lambda: _clone(template_dir, fresh, target, disk_mib),
                lambda _: disk_btrfs.destroy(target),
            )
        finally:
            self._live.discard(fresh.name)
        return target / ROOTFS

    async def delete(self, sandbox_id: str) -> None:
        """Remove a sandbox's disk; nothing there is not an error."""
        target = self._sandboxes / _checked(sandbox_id)
        await self._guarded(f"delete the disk of {sandbox_id}", lambda: disk_btrfs.destroy(target))

    async def list(self) -> list[str]:
        """Ids of all sandboxes that have a disk."""
        return sorted(entry.name for entry in self._sandboxes.iterdir() if not entry.name.startswith("."))

    # -- templates

    def templates(self) -> dict[str, Path]:
        """Every name:tag with the template's directory."""
        found = {}
        for link in sorted(self._tags.glob("*/*")):
            if not link.name.startswith(".") and link.is_symlink() and link.is_dir():
                found[f"{link.parent.name}:{link.name}"] = link.resolve()
        return found

    @asynccontextmanager
    async def staging(self) -> AsyncIterator[Path]:
        """An empty subvolume to build a template in; removed at the end unless it was published."""
        await self._refuse_below_floor("no room to build a template")
        path = self._templates / f".staging-{secrets.token_hex(8)}"
        self._live.add(path.name)
        try:
            await self._guarded("make a staging subvolume", lambda: disk_btrfs.create(path))
            yield path
        finally:
            try:
                await self._guarded("remove the staging subvolume", lambda: disk_btrfs.destroy(path))
            finally:
                self._live.discard(path.name)

    async def publish(self, path: Path, digest_hex: str, tags: Collection[tuple[str, str]] = ()) -> Path:
        """Make the staging subvolume the template `digest_hex`, visible at once and read-only, and point tags at it.

        A template of that digest which exists already is kept; then the staging is only thrown away.
        """
        if _DIGEST.fullmatch(digest_hex) is None:
            raise DiskError(f"{digest_hex!r} is not a digest")
        if path.name not in self._live:
            raise DiskError(f"{path} is not a staging subvolume of this store")
        for name, tag in tags:
            _checked(name)
            _checked(tag)
        target = self._templates / digest_hex
        async with self._lock:
            await self._guarded(f"publish template {digest_hex}", lambda: _publish(path, target))
            for name, tag in tags:
                self._point(name, tag, digest_hex)
        return target

    def _point(self, name: str, tag: str, digest_hex: str) -> None:
        folder = self._tags / name
        folder.mkdir(mode=0o700, exist_ok=True)
        fresh = folder / f".{tag}.{secrets.token_hex(4)}"
        fresh.symlink_to(Path("../../templates") / digest_hex)
        fresh.rename(folder / tag)

    # -- within

    def _sweep(self) -> None:
        for directory in (self._templates, self._sandboxes):
            for entry in directory.glob(".*"):
                if entry.name not in self._live:
                    disk_btrfs.destroy(entry)
        for link in self._tags.glob("*/.*"):
            link.unlink()

    async def _refuse_below_floor(self, what: str) -> None:
        for _ in range(RECLAIM_TRIES):
            if self.free_mib() >= self._floor_mib:
                return
            # btrfs gives back what was deleted only with its commits, 30 s apart by default
            await self._guarded("commit the pool", lambda: disk_btrfs.commit(self.pool))
            await asyncio.sleep(RECLAIM_PAUSE_S)
        if (free := self.free_mib()) < self._floor_mib:
            raise DiskFull(what, free, self._floor_mib)

    async def _guarded(self, what: str, work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        try:
            return await run_whole(work, undo)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DiskFull(f"cannot {what}", self.free_mib(), self._floor_mib) from error
            raise DiskError(f"cannot {what}: {error}") from error


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise DiskError(f"{name!r} cannot be a name in the pool")
    return name


def _clone(template: Path, fresh: Path, target: Path, disk_mib: int) -> None:
    disk_btrfs.snapshot(template, fresh)
    try:
        image = fresh / ROOTFS
        _refuse_smaller(image, disk_mib)
        os.truncate(image, disk_mib * MIB)
        image.chmod(0o600)
        fresh.rename(target)  # refuses a non-empty target: two clones of one id cannot both win
    except BaseException:
        disk_btrfs.destroy(fresh)
        raise


def _refuse_smaller(image: Path, disk_mib: int) -> None:
    size = image.stat().st_size
    if disk_mib * MIB < size:
        raise DiskError(f"the template's image has {size // MIB} MiB, more than the {disk_mib} MiB asked for")


def _publish(path: Path, target: Path) -> None:
    if target.exists():
        return
    os.sync()  # the files' contents before the name that promises them
    disk_btrfs.make_read_only(path)
    path.rename(target)  # within one directory: a read-only subvolume cannot change its parent
