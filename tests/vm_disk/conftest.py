import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.vm.disk import Store

POOL_MIB = 300


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A small pool in a loop file of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    made = Store(tmp_path, size_mib=POOL_MIB, floor_mib=40)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def template(store: Store) -> Path:
    """A published template with a 10 MiB image."""
    async with store.staging() as path:
        (path / "rootfs.ext4").write_bytes(b"base" + bytes(10 * 2**20 - 4))
        (path / "manifest.json").write_text("{}")
        return await store.publish(path, "ab" * 32, tags=[("seed", "latest")])
