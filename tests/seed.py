"""One seed for all tests: built once into the repository's cache, kept as long as what it is made from is the same."""

import asyncio
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from space.templates import initramfs, kernel, manifest, rootfs, seed, sources
from space.templates.agent import agent_binary

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "seed"
INITRAMFS_INPUTS = (initramfs, kernel, manifest, seed)


def _key(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _source(*modules: object) -> bytes:
    return b"".join(Path(str(module.__file__)).read_bytes() for module in modules)  # type: ignore[attr-defined]


def seed_dir() -> Path:
    """A folder with rootfs.ext4, vmlinux, initramfs and manifest.json. Treat as read-only; a minute the first time."""
    root_key = _key(_source(rootfs, sources))
    whole_key = _key(root_key.encode(), _source(*INITRAMFS_INPUTS), agent_binary().read_bytes())
    target = CACHE / f"seed-{whole_key}"
    if target.is_dir():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            asyncio.run(_build(target, CACHE / f"root-{root_key}"))
    return target


def _say(phase: str, fraction: float) -> None:
    print(f"seed: {fraction:4.0%} {phase}", file=sys.stderr)


async def _build(target: Path, root: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=".work-", dir=CACHE))
    try:
        if not root.is_dir():
            made = work / "root"
            made.mkdir()
            tree, packages = await rootfs.build_tree(work, _say)
            await rootfs.make_image(tree, made / "rootfs.ext4", packages)
            (made / "packages").write_text("\n".join(packages))
            made.rename(root)
        out = work / "out"
        out.mkdir()
        os.link(root / "rootfs.ext4", out / "rootfs.ext4")
        linux = await kernel.fetch(CACHE / "kernel")
        await seed.finish(out, linux, agent_binary(), (root / "packages").read_text().split())
        out.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    print(seed_dir())
