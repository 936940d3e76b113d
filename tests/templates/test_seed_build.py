"""The seed is built from the real mirror and published whole, and a build that ends early leaves nothing."""

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from space.base import tasks
from space.templates import rootfs, sources
from space.templates.errors import TemplateError
from space.templates.manifest import Manifest, sha256
from space.templates.seed import build_seed


class FolderStore:
    """A store of plain folders; a staged one is gone unless it was published."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    @contextlib.asynccontextmanager
    async def staging(self) -> AsyncIterator[Path]:
        path = Path(tempfile.mkdtemp(prefix=".staging-", dir=self.root))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    async def publish(self, path: Path, digest_hex: str, tags: Collection[tuple[str, str]]) -> Path:
        target = path.rename(self.root / digest_hex)
        for name, tag in tags:
            (self.root / f"{name}:{tag}").symlink_to(digest_hex)
        return target


def debugfs(image: Path, command: str) -> str:
    return subprocess.run(["debugfs", "-R", command, image], capture_output=True, text=True, check=True).stdout


def mounts(below: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(below) in line]


@pytest.mark.timeout(600)
async def test_the_seed_is_whole_and_names_nobody(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    told: list[tuple[str, float]] = []
    manifest = await build_seed(store, lambda *said: told.append(said), state_dir=tmp_path / "state")
    template = store.root / "seed:latest"
    assert template.resolve().name == manifest.digest
    assert Manifest.read(template) == manifest
    for name, digest in manifest.files.items():
        assert await sha256(template / name) == digest
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions)
    assert told[-1] == ("done", 1.0)
    assert {"download", "packages", "image"} <= {phase for phase, _ in told}
    assert {line.split("=")[0] for line in manifest.packages} >= set(rootfs.PACKAGES)

    image = template / "rootfs.ext4"
    assert image.stat().st_size == manifest.size_mib * 1024 * 1024
    assert subprocess.run(["e2fsck", "-fn", image], capture_output=True, check=False).returncode == 0
    assert "User:  1000   Group:  1000" in debugfs(image, "stat /home/user")
    assert "user:x:1000:1000::/home/user:/bin/bash" in debugfs(image, "cat /etc/passwd")
    assert "NOPASSWD" in debugfs(image, "cat /etc/sudoers.d/user")
    assert debugfs(image, "cat /etc/machine-id") == ""
    assert "ssh_host" not in debugfs(image, "ls /etc/ssh")
    assert "99mmdebstrap" not in debugfs(image, "ls /etc/apt/apt.conf.d") + debugfs(image, "ls /etc/dpkg/dpkg.cfg.d")
    for source in sources.choose(sources.host_sources(), sources.host_codename()):
        assert source.uri not in debugfs(image, "cat /etc/apt/sources.list")

    assert sorted(path.name for path in store.root.iterdir()) == sorted([manifest.digest, "seed:latest"])
    assert list((tmp_path / "state" / "work").iterdir()) == []
    assert mounts(tmp_path) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("phase", ["download", "packages"])
async def test_a_cancelled_build_leaves_nothing(tmp_path: Path, phase: str) -> None:
    store = FolderStore(tmp_path / "store")
    reached = asyncio.Event()

    def progress(said: str, _: float) -> None:
        if said == phase:
            reached.set()

    stale = tmp_path / "state" / "work" / "seed-died"
    stale.mkdir(parents=True)
    build = tasks.spawn("build", build_seed(store, progress, state_dir=tmp_path / "state"))
    async with asyncio.timeout(200):
        await reached.wait()
    await asyncio.sleep(1.0)
    build.cancel()
    with pytest.raises(asyncio.CancelledError):
        await build
    assert list(store.root.iterdir()) == []
    assert list((tmp_path / "state" / "work").iterdir()) == []
    assert mounts(tmp_path) == []
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in running


async def test_a_mirror_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens on port 9 of this host.
    dead = sources.Source("http://127.0.0.1:9/debian", sources.host_codename(), ("main",))
    monkeypatch.setattr(sources, "host_sources", lambda: [dead])
    store = FolderStore(tmp_path / "store")
    with pytest.raises(TemplateError, match="mmdebstrap failed") as caught:
        await build_seed(store, lambda *_: None, state_dir=tmp_path / "state")
    assert caught.value.phase == "packages"
    assert list(store.root.iterdir()) == []
    assert list((tmp_path / "state" / "work").iterdir()) == []
