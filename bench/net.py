"""Network namespaces: making, taking from the pool, deleting, entering to dial, and how fast a connect is refused."""

import asyncio
import contextlib
import os
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

from harness import Row

from space.vm import net_rules
from space.vm.net import Network

ROUNDS = 20
POOL = 4


async def run() -> list[Row]:
    """All rows; every namespace made is deleted again."""
    network = Network(prefix=f"space-b{os.getpid()}-", pool_size=0)
    pool = Network(prefix=f"space-p{os.getpid()}-", pool_size=POOL)
    rows = [Row(name, "ms") for name in ("create_ms", "delete_ms", "dial_ms", "refusal_ms", "acquire_ms")]
    create, delete, dial, refusal, acquire = (row.samples for row in rows)
    try:
        for _ in range(ROUNDS):
            name = await _timed(create, network.acquire)
            await _timed(delete, lambda name=name: network.release(name))
        name = await network.acquire()
        egress, control = await network.taps(name)
        await network.link_up(name)
        for _ in range(ROUNDS):
            await _timed(refusal, lambda: _refused(egress))
            await _timed(dial, lambda: _enter_and_leave(network, name))
        os.close(egress)
        os.close(control)
        await pool.open()
        for _ in range(ROUNDS):
            while pool.pooled() < POOL:
                await asyncio.sleep(0.005)
            taken = await _timed(acquire, pool.acquire)
            await pool.release(taken)
    finally:
        await pool.close()
        for left in (network, pool):
            for name in await left.list():
                await left.delete(name)
    return rows


async def _timed(samples: list[float], work: Callable[[], Awaitable[Any]]) -> Any:
    began = time.perf_counter()
    result = await work()
    samples.append((time.perf_counter() - began) * 1000)
    return result


async def _enter_and_leave(network: Network, name: str) -> None:
    """A dial that cannot wait for an answer: the socket is made inside, the connect is begun and given up."""
    with contextlib.suppress(TimeoutError):
        (await network.dial(name, 0)).close()


async def _refused(tap: int) -> None:
    """A UDP datagram to an address far away, until the frame with its refusal is read."""
    body = struct.pack("!HHHH", 40001, 53, 8, 0)
    target = bytes([1, 1, 1, 1])
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 7, 0, 64, 17, 0, bytes([10, 77, 0, 2]), target)
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + head[12:]
    source = bytes.fromhex(net_rules.GUEST_MAC.replace(":", ""))
    gateway = await _gateway_mac(tap, source)
    os.write(tap, bytes(10) + gateway + source + b"\x08\x00" + head + body)
    while True:
        frame = os.read(tap, 65536)[10:]
        if frame[12:14] == b"\x08\x00" and frame[23] == 1 and frame[34] == 3:
            return


async def _gateway_mac(tap: int, source: bytes) -> bytes:
    ask = struct.pack(
        "!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, source, bytes([10, 77, 0, 2]), bytes(6), bytes([10, 77, 0, 1])
    )
    os.write(tap, bytes(10) + b"\xff" * 6 + source + b"\x08\x06" + ask)
    while True:
        frame = os.read(tap, 65536)[10:]
        if frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\x02":
            return frame[22:28]
