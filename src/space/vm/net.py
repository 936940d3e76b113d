"""One network namespace a sandbox: two taps, the same addresses in each, no uplink, everything refused at once.

Only here is netlink spoken. A namespace is a file under /run/netns, so it outlives the process that made it; `list`
finds those of an earlier life. A pool of unused ones is kept ahead because making one costs tens of milliseconds. A
released namespace is deleted, never used again.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from pyroute2 import IPRoute

from space.base.tasks import spawn
from space.vm import net_enter, net_rules
from space.vm.threads import run_whole

T = TypeVar("T")

DEFAULT_DIR = Path("/run/netns")
NFT_TIMEOUT_S = 10  # loading takes about 10 ms; a host that needs a thousand times that is broken
MAX_SLOTS = 9999  # far above the machines a host can hold
REFILL_PAUSE_S = 1.0  # after a failed refill: the usual cause (no memory, no descriptors) does not pass within ms


class NetworkError(Exception):
    """A namespace could not be made, used or removed; the text names it and says why."""


class Network:
    """The namespaces of one worker. `prefix` keeps two workers of one host apart."""

    def __init__(self, directory: Path = DEFAULT_DIR, *, prefix: str = "space-", pool_size: int = 4) -> None:
        self._dir = directory
        self._prefix = prefix
        self._pattern = re.compile(re.escape(prefix) + r"\d{4}")
        self._pool_size = pool_size
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._making: set[str] = set()
        self._wanted = asyncio.Event()
        self._refiller: asyncio.Task[None] | None = None

    # -- the pool

    async def open(self, keep: Collection[str] = ()) -> None:
        """Delete what an earlier life left, except `keep`, and start filling the pool."""
        self._dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in await self.list():
            if name not in keep:
                await self.delete(name)
        if self._pool_size > 0:
            self._wanted.set()
            self._refiller = spawn("namespace-pool", self._refill())

    async def close(self) -> None:
        """Stop filling and delete the unused ones; those acquired stay."""
        if self._refiller is not None:
            self._refiller.cancel()
            await asyncio.wait({self._refiller})
            self._refiller = None
        while not self._ready.empty():
            await self.delete(self._ready.get_nowait())

    async def acquire(self) -> str:
        """The name of a fresh namespace: from the pool, else made now."""
        self._wanted.set()
        with contextlib.suppress(asyncio.QueueEmpty):
            return self._ready.get_nowait()
        return await self._make()

    async def release(self, name: str) -> None:
        """Delete a namespace that was acquired and have a new one made for the pool."""
        await self.delete(name)
        self._wanted.set()

    def pooled(self) -> int:
        """How many namespaces stand ready."""
        return self._ready.qsize()

    async def _refill(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._ready.qsize() < self._pool_size:
                try:
                    self._ready.put_nowait(await self._make())
                except NetworkError:
                    # acquire() makes its own and tells its caller the reason; here it is only tried again
                    await asyncio.sleep(REFILL_PAUSE_S)

    async def _make(self) -> str:
        name = self._free_name()
        self._making.add(name)
        try:
            await self.create(name)
        finally:
            self._making.discard(name)
        return name

    def _free_name(self) -> str:
        for slot in range(1, MAX_SLOTS + 1):
            name = f"{self._prefix}{slot:04d}"
            if name not in self._making and not (self._dir / name).exists():
                return name
        raise NetworkError(f"no free namespace name under {self._dir}")

    # -- one namespace

    async def create(self, name: str) -> None:
        """Make the namespace `name`, whole or not at all."""
        path = self._path(name)
        if path.exists():
            raise NetworkError(f"network namespace {name} is there already")

        def work() -> None:
            try:
                net_enter.unshare_into(path)
                _furnish()
            except BaseException:
                net_enter.remove(path)
                raise

        await self._guarded(name, "create", work, lambda _: net_enter.remove(path))

    async def delete(self, name: str) -> None:
        """Remove the namespace with its taps and rules; nothing there is not an error."""
        path = self._path(name)
        await self._guarded(name, "delete", lambda: net_enter.remove(path))

    async def list(self) -> list[str]:
        """Names of all namespaces with this worker's prefix, whoever made them."""
        if not self._dir.is_dir():
            return []
        return sorted(entry.name for entry in self._dir.iterdir() if self._pattern.fullmatch(entry.name))

    async def taps(self, name: str) -> tuple[int, int]:
        """Descriptors (egress, control) for the VMM; the caller closes them. EBUSY while another holder lives."""
        return await self._inside(name, "open taps of", _open_taps, _close_taps)

    async def link_up(self, name: str) -> None:
        """Raise the egress link: from now on the guest hears answers (refusals)."""
        await self._inside(name, "raise the link of", _egress_up)

    async def counters(self, name: str) -> dict[str, int]:
        """Packets counted: refused (egress tap), control_dropped."""
        return await self._inside(name, "read counters of", _counters)

    async def dial(self, name: str, timeout: float) -> socket.socket:  # noqa: ASYNC109 - part of the agreed signature
        """A connected, non-blocking stream to the agent in `name`. Raises OSError or TimeoutError (seconds)."""
        opened = net_enter.open_socket(self._path(name))
        try:
            target = (net_rules.AGENT_ADDRESS, net_rules.AGENT_PORT)
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().sock_connect(opened, target)
        except BaseException:
            opened.close()
            raise
        return opened

    def _path(self, name: str) -> Path:
        if self._pattern.fullmatch(name) is None:
            raise NetworkError(f"{name!r} is not a namespace name of this worker ({self._prefix}NNNN)")
        return self._dir / name

    async def _inside(
        self, name: str, verb: str, work: Callable[[], T], undo: Callable[[T], object] | None = None
    ) -> T:
        path = self._path(name)

        def entered() -> T:
            net_enter.enter(path)
            return work()

        return await self._guarded(name, verb, entered, undo)

    async def _guarded(
        self, name: str, verb: str, work: Callable[[], T], undo: Callable[[T], object] | None = None
    ) -> T:
        try:
            return await run_whole(work, undo)
        except (OSError, subprocess.SubprocessError) as error:
            raise NetworkError(f"cannot {verb} network namespace {name}: {_reason(error)}") from error
        except Exception as error:
            if type(error).__module__.startswith("pyroute2"):
                raise NetworkError(f"cannot {verb} network namespace {name}: {error}") from error
            raise


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    return str(error)


# What follows runs in a thread that is inside the namespace.


def _furnish() -> None:
    for key, value in net_rules.SYSCTLS.items():
        path = Path("/proc/sys/net") / key
        if path.exists():  # a kernel without IPv6 has no such keys and nothing to turn off
            path.write_text(value)
    _nft("-f", "-", stdin=net_rules.RULES)  # before any link is up
    for name in (net_rules.EGRESS, net_rules.CONTROL):
        os.close(net_enter.open_tap(name, persist=True))
    with IPRoute() as route:
        egress, control = _index(route, net_rules.EGRESS), _index(route, net_rules.CONTROL)
        route.link("set", index=_index(route, "lo"), state="up")
        route.addr("add", index=egress, address=net_rules.GATEWAY_ADDRESS, prefixlen=net_rules.GATEWAY_PREFIX)
        route.addr("add", index=control, address=net_rules.CONTROL_ADDRESS, prefixlen=net_rules.CONTROL_PREFIX)
        route.link("set", index=control, state="up")
        _neighbour(route, control, net_rules.AGENT_ADDRESS, net_rules.AGENT_MAC)


def _egress_up() -> None:
    with IPRoute() as route:
        egress = _index(route, net_rules.EGRESS)
        route.link("set", index=egress, state="up")
        _neighbour(route, egress, net_rules.GUEST_ADDRESS, net_rules.GUEST_MAC)


def _neighbour(route: IPRoute, index: int, address: str, mac: str) -> None:
    # Permanent: the guest's address is known, so no question on the wire, no answer to forge, no 3 s of failed asking
    route.neigh("replace", ifindex=index, dst=address, lladdr=mac, state=0x80)


def _index(route: IPRoute, name: str) -> int:
    found = route.link_lookup(ifname=name)
    if not found:
        raise OSError(f"interface {name} is missing")
    return int(found[0])


def _open_taps() -> tuple[int, int]:
    egress = net_enter.open_tap(net_rules.EGRESS)
    try:
        return egress, net_enter.open_tap(net_rules.CONTROL)
    except OSError:
        os.close(egress)
        raise


def _close_taps(taps: tuple[int, int]) -> None:
    for handle in taps:
        os.close(handle)


def _counters() -> dict[str, int]:
    listing = json.loads(_nft("-j", "list", "counters"))
    return {item["counter"]["name"]: item["counter"]["packets"] for item in listing["nftables"] if "counter" in item}


def _nft(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["nft", *arguments], input=stdin, capture_output=True, text=True, check=True, timeout=NFT_TIMEOUT_S
    )
    return done.stdout
