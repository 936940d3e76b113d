"""Builds `seed:latest`, the default template, and publishes it whole or not at all."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

from space.base.commands import CommandError
from space.templates import initramfs, kernel, rootfs
from space.templates.agent import agent_binary
from space.templates.errors import TemplateError
from space.templates.manifest import KernelInfo, Manifest, sha256
from space.templates.rootfs import Progress
from space.templates.store import TemplateStore

NAME, TAG = "seed", "latest"
# Shares of the whole build's time, measured: packages 30 s, kernel 3 s, image 3 s, digests 2 s.
KERNEL_UNTIL, TREE_UNTIL, IMAGE_UNTIL = 0.08, 0.85, 0.93


async def build_seed(store: TemplateStore, progress: Progress, *, state_dir: Path) -> Manifest:
    """Build the seed and publish it; on failure or cancellation nothing of it stays but the kernel's cache.

    `progress` gets a phase and the fraction done, rising from 0 to 1. Raises TemplateError.
    """
    agent = agent_binary()
    try:
        async with store.staging() as staged, _workspace(state_dir / "work") as work:
            manifest = await assemble(staged, work, agent, progress, cache=state_dir / "cache" / "kernel")
            await store.publish(staged, manifest.digest, tags=[(NAME, TAG)])
    except CommandError as error:
        raise TemplateError("seed", str(error)) from error
    progress("done", 1.0)
    return manifest


async def assemble(target: Path, work: Path, agent: Path, progress: Progress, *, cache: Path) -> Manifest:
    """Write the four files of the seed into `target`; `work` is an empty folder for what comes between."""
    progress("kernel", 0.0)
    linux = await kernel.fetch(cache)

    def within(phase: str, fraction: float) -> None:
        progress(phase, KERNEL_UNTIL + fraction * (TREE_UNTIL - KERNEL_UNTIL))

    tree, packages = await rootfs.build_tree(work, within)
    progress("image", TREE_UNTIL)
    await rootfs.make_image(tree, target / "rootfs.ext4", packages)
    progress("digests", IMAGE_UNTIL)
    return await finish(target, linux, agent, packages)


async def finish(target: Path, linux: kernel.Kernel, agent: Path, packages: list[str]) -> Manifest:
    """Add kernel, initramfs and manifest to a folder that has its root image."""
    await asyncio.to_thread(shutil.copyfile, linux.vmlinux, target / "vmlinux")
    program = await asyncio.to_thread(agent.read_bytes)
    (target / "initramfs").write_bytes(await initramfs.build(program, linux.modules))
    files = {name: await sha256(target / name) for name in ("rootfs.ext4", "vmlinux", "initramfs")}
    manifest = Manifest(
        name=NAME,
        tag=TAG,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        architecture="amd64",
        kernel=KernelInfo(package=linux.package, version=linux.version, release=linux.release),
        agent_sha256=await sha256(agent),
        size_mib=rootfs.SIZE_MIB,
        packages=packages,
        files=files,
    )
    manifest.write(target)
    return manifest


@contextlib.asynccontextmanager
async def _workspace(parent: Path) -> AsyncIterator[Path]:
    """A folder for this build alone; what builds that died left behind goes first."""
    folder = await asyncio.to_thread(_fresh, parent)
    try:
        with _locked(folder) as held:
            assert held
            yield folder
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))


def _fresh(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(parent)
    return Path(tempfile.mkdtemp(prefix="seed-", dir=parent))


def _sweep(parent: Path) -> None:
    for folder in parent.glob("seed-*"):
        with _locked(folder) as held:
            if held:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether nobody else is at work in `folder`; the kernel drops the lock of a builder that died."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = True
    except BlockingIOError:
        held = False
    try:
        yield held
    finally:
        os.close(descriptor)
