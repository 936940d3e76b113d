"""A real machine through the worker's executor: create, a guest stream by descriptor, delete, nothing left."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.seed import seed_dir

from space.base.settings import Settings
from space.guest.client import GuestClient
from space.vm.disk import Store
from space.wire.node import Assign, Spec
from space.worker.app import Worker

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the worker needs root")


async def _publish(store: Store, seed: Path) -> None:
    await store.open()
    async with store.staging() as folder:
        for name in ("rootfs.ext4", "vmlinux", "initramfs", "manifest.json"):
            await asyncio.to_thread(shutil.copyfile, seed / name, folder / name)
        await store.publish(folder, "ab" * 32, [("seed", "latest")])


async def _until(reports: list[Any], *states: str) -> Any:
    async with asyncio.timeout(60):
        while not reports or reports[-1].state not in states:
            await asyncio.sleep(0.05)
    return reports[-1]


async def test_create_dial_delete(tmp_path: Path) -> None:
    seed = await asyncio.to_thread(seed_dir)
    settings = Settings.load(
        {"SPACE_STATE_DIR": str(tmp_path / "state"), "SPACE_RUN_DIR": str(tmp_path / "run"), "SPACE_ACCEL": "tcg",
         "SPACE_POOL_SIZE_MIB": "4096", "SPACE_POOL_FLOOR_MIB": "64"}
    )  # fmt: skip
    settings.state_dir.mkdir()
    before = os.listdir("/run/netns") if Path("/run/netns").is_dir() else []
    worker = Worker(settings)
    await _publish(worker.store, seed)
    reports: list[Any] = []
    worker.link.report = reports.append  # type: ignore[method-assign, assignment]
    try:
        await worker.open()
        executor, template = worker.executor, worker._templates()[0]
        assert executor is not None
        spec = Spec(
            template=template.name, digest=template.digest, vcpus=1, memory_mib=512,
            disk_mib=max(2048, template.size_mib), hostname="sbxtest1",
        )  # fmt: skip
        assign = Assign(sandbox="sbxtest1", epoch=1, desired="running", spec=spec)
        executor.assign(assign)
        running = await _until(reports, "running", "failed")
        assert running.state == "running", running.reason
        netns = executor.keepers["sbxtest1"].work.record.netns
        assert netns is not None
        assert (await GuestClient(lambda: worker.network.dial(netns, 5)).health())["adopted"] is True
        executor.assign(assign.model_copy(update={"desired": "deleted", "epoch": 2}))
        await _until(reports, "deleted")
        assert await worker.store.list() == []
        assert not list((settings.state_dir / "worker/sandboxes").iterdir())
    finally:
        await worker.close()
        await worker.store.close()
    assert (os.listdir("/run/netns") if Path("/run/netns").is_dir() else []) == before
