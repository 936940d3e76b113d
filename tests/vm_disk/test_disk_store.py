"""Templates appear whole, clones are independent, the floor holds, and a pool is found again."""

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from space.vm.disk import DiskError, DiskFull, Store

MIB = 1 << 20


def _loops(image: Path) -> str:
    return subprocess.run(["losetup", "-j", str(image)], check=True, capture_output=True, text=True).stdout


def _fill(image: Path) -> None:
    with image.open("r+b", buffering=0) as handle:
        while True:
            handle.write(os.urandom(4 * MIB))
            os.fsync(handle.fileno())


async def _broken_build(store: Store) -> None:
    async with store.staging() as path:
        (path / "rootfs.ext4").write_text("half")
        raise ZeroDivisionError


async def test_a_clone_is_larger_private_and_independent(store: Store, template: Path) -> None:
    began = time.monotonic()
    image = await store.clone(template, "sbx_1", 64)
    assert time.monotonic() - began < 0.5
    assert image == store.pool / "sandboxes/sbx_1/rootfs.ext4"
    assert image.stat().st_size == 64 * MIB
    assert image.stat().st_mode & 0o777 == 0o600
    with image.open("r+b") as handle:
        handle.write(b"mine")
    assert (template / "rootfs.ext4").read_bytes()[:4] == b"base"
    assert await store.list() == ["sbx_1"]
    with pytest.raises(DiskError, match="already"):
        await store.clone(template, "sbx_1", 64)
    await store.delete("sbx_1")
    await store.delete("sbx_1")
    assert await store.list() == []


async def test_a_template_is_read_only_and_tagged(store: Store, template: Path) -> None:
    assert store.templates() == {"seed:latest": template}
    with pytest.raises(OSError, match="Read-only"):
        (template / "rootfs.ext4").open("r+b")


async def test_an_unpublished_or_second_build_leaves_nothing(store: Store, template: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        await _broken_build(store)
    async with store.staging() as path:
        assert await store.publish(path, template.name, tags=[("seed", "v2")]) == template
    assert os.listdir(store.pool / "templates") == [template.name]
    assert set(store.templates()) == {"seed:latest", "seed:v2"}


async def test_a_tag_moves_at_once(store: Store, template: Path) -> None:
    async with store.staging() as path:
        (path / "rootfs.ext4").write_bytes(b"new")
        newer = await store.publish(path, "cd" * 32, tags=[("seed", "latest")])
    assert store.templates() == {"seed:latest": newer}
    assert template.is_dir()


@pytest.mark.parametrize("bad", ["../x", ".hidden", "a/b", ""])
async def test_bad_names_are_refused(store: Store, template: Path, bad: str) -> None:
    with pytest.raises(DiskError, match="cannot be a name"):
        await store.clone(template, bad, 64)
    with pytest.raises(DiskError, match="cannot be a name"):
        await store.delete(bad)


async def test_a_smaller_disk_than_the_template_is_refused_without_trace(store: Store, template: Path) -> None:
    with pytest.raises(DiskError, match="10 MiB"):
        await store.clone(template, "sbx_1", 5)
    with pytest.raises(DiskError, match="No such file"):
        await store.clone(template.with_name("00" * 32), "sbx_1", 50)
    assert os.listdir(store.pool / "sandboxes") == []


async def test_below_the_floor_nothing_new_is_made(store: Store, template: Path) -> None:
    image = await store.clone(template, "sbx_big", 1000)
    with pytest.raises(OSError, match="No space"):
        _fill(image)
    with pytest.raises(DiskFull) as caught:
        await store.clone(template, "sbx_2", 64)
    assert caught.value.free_mib < caught.value.floor_mib == 40
    await store.delete("sbx_big")  # a full pool can still be emptied
    assert await store.clone(template, "sbx_2", 64)


async def test_a_pool_is_preallocated_found_again_and_closed(store: Store, template: Path, tmp_path: Path) -> None:
    image = tmp_path / "pool.btrfs"
    assert image.stat().st_blocks * 512 >= 300 * MIB
    await store.clone(template, "sbx_1", 64)
    (store.pool / "sandboxes/.half").mkdir()
    (store.pool / "sandboxes/.half").rmdir()
    subprocess.run(["btrfs", "-q", "subvolume", "create", str(store.pool / "sandboxes/.half")], check=True)
    again = Store(tmp_path, size_mib=300, floor_mib=40)
    await again.open()
    assert len(_loops(image).splitlines()) == 1
    assert os.listdir(store.pool / "sandboxes") == ["sbx_1"]
    await again.close()
    assert _loops(image) == ""
    assert not os.path.ismount(store.pool)
    await again.close()
    await store.open()
    assert await store.list() == ["sbx_1"]
    options = subprocess.run(
        ["findmnt", "-no", "OPTIONS", str(store.pool)], check=True, capture_output=True, text=True
    ).stdout
    assert {"nosuid", "nodev", "noexec"} <= set(options.strip().split(","))


async def test_many_clones_at_once(store: Store, template: Path) -> None:
    results = await asyncio.gather(
        *(store.clone(template, f"sbx_{n % 8}", 64) for n in range(16)), return_exceptions=True
    )
    assert sum(isinstance(result, Path) for result in results) == 8
    assert len(await store.list()) == 8


async def test_a_state_directory_on_btrfs_needs_no_loop_file(store: Store) -> None:
    inner = Store(store.pool / "inner", floor_mib=1)
    inner_dir = store.pool / "inner"
    inner_dir.mkdir()
    await inner.open()
    async with inner.staging() as path:
        (path / "rootfs.ext4").write_text("x")
        made = await inner.publish(path, "ef" * 32)
    assert await inner.clone(made, "a", 1)
    assert not (inner_dir / "pool.btrfs").exists()
    await inner.close()


async def test_no_room_on_the_host_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("space.vm.disk_pool.HOST_RESERVE_MIB", 10**9)
    with pytest.raises(DiskFull, match="must stay free"):
        await Store(tmp_path).open()
    assert not (tmp_path / "pool.btrfs").exists()
