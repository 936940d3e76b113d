"""Namespaces are made ahead, found again, deleted without trace and never used twice."""

import asyncio
import os
import subprocess
import time

import pytest

from space.vm.net import Network, NetworkError


async def _filled(network: Network, count: int) -> None:
    for _ in range(300):
        if network.pooled() == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"the pool holds {network.pooled()}, not {count}")


async def test_a_pool_serves_at_once_and_refills(network: Network) -> None:
    pool = Network(prefix=network._prefix, pool_size=2)
    await pool.open()
    await _filled(pool, 2)
    began = time.monotonic()
    first = await pool.acquire()
    assert time.monotonic() - began < 0.005
    await _filled(pool, 2)
    second = await pool.acquire()
    assert first != second
    await pool.close()
    assert set(await pool.list()) == {first, second}


async def test_what_an_earlier_life_left_is_found_and_swept(network: Network) -> None:
    kept, lost = await network.acquire(), await network.acquire()
    again = Network(prefix=network._prefix, pool_size=0)
    assert await again.list() == sorted([kept, lost])
    await again.open(keep={kept})
    assert await again.list() == [kept]
    await again.link_up(kept)


async def test_a_released_one_is_made_anew(network: Network) -> None:
    name = await network.acquire()
    inode = os.stat(f"/run/netns/{name}").st_ino
    command = ["nsenter", f"--net=/run/netns/{name}", "ip", "tuntap", "add", "left", "mode", "tap"]
    subprocess.run(command, check=True)
    await network.release(name)
    again = await network.acquire()
    assert again == name
    command = ["nsenter", f"--net=/run/netns/{again}", "ip", "-o", "link"]
    assert "left" not in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert os.stat(f"/run/netns/{again}").st_ino != 0 != inode


async def test_delete_is_idempotent_and_names_are_checked(network: Network) -> None:
    name = await network.acquire()
    await network.delete(name)
    await network.delete(name)
    for bad in ("default", "../x", f"{name}/.."):
        with pytest.raises(NetworkError, match="not a namespace name"):
            await network.delete(bad)
    with pytest.raises(NetworkError, match=r"No such file"):
        await network.taps(name)


async def test_a_file_left_halfway_is_swept(network: Network) -> None:
    with open(f"/run/netns/{network._prefix}0001", "w"):
        pass
    await network.open()
    assert await network.list() == []


async def test_taps_outlive_their_holder_and_have_one(network: Network) -> None:
    name = await network.acquire()
    first = await network.taps(name)
    with pytest.raises(NetworkError, match="busy"):
        await network.taps(name)
    for handle in first:
        os.close(handle)
    for handle in await network.taps(name):
        os.close(handle)


async def test_a_cancelled_create_leaves_no_half(network: Network) -> None:
    task = asyncio.create_task(network.acquire())
    await asyncio.sleep(0.002)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await network.list() == []


async def test_many_at_once(network: Network) -> None:
    names = await asyncio.gather(*(network.acquire() for _ in range(8)))
    assert len(set(names)) == 8
