"""The controller's loops around one database and one listener."""

import asyncio
import contextlib

from space.base.logs import get_logger
from space.base.settings import Settings
from space.base.tasks import cancel, spawn
from space.controller.ca import ensure_ca
from space.controller.converge import converge
from space.controller.links import NodeServer
from space.controller.reports import move
from space.domain.errors import PlatformUnavailable
from space.domain.sandbox import State
from space.store import Database
from space.wire.node import LEASE_S

SWEEP_S = 1.0  # deadlines are kept to about a second
PUSH_S = 5.0  # a lost wake-up costs an assignment no more than this
TAKE_OVER_S = 2.0  # how soon another replica notices that the singleton's holder is gone


class Controller:
    """One replica. `notifications=False` leaves everything to the periodic passes."""

    def __init__(self, settings: Settings, db: Database, *, notifications: bool = True) -> None:
        self._settings = settings
        self._db = db
        self._notifications = notifications
        self.nodes = NodeServer(db, settings.state_dir / "ca")
        self._woken: asyncio.Queue[str] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0

    async def open(self) -> None:
        """Listen and start the loops."""
        ensure_ca(self._settings.state_dir)
        self.port = await self.nodes.open(self._settings.node_listen_host, self._settings.node_listen_port)
        if self._notifications:
            await self._db.listen({"space_sandbox": self._woken.put_nowait})
        self._tasks = [
            spawn("controller-wakes", self._wakes()),
            spawn("controller-sweep", self._singleton()),
            spawn("controller-push", self._pushes()),
        ]

    async def close(self) -> None:
        """Stop the loops and let the workers go to another replica."""
        await cancel(*self._tasks)
        await self.nodes.close()

    async def _wakes(self) -> None:
        while True:
            sandbox = await self._woken.get()
            if sandbox:  # an empty one says "look at everything": the periodic passes do
                await self._look(sandbox)

    async def _look(self, sandbox: str) -> None:
        with contextlib.suppress(PlatformUnavailable):
            await converge(self._db, sandbox)
            for node in list(self.nodes.links):
                await self.nodes.push(node, sandbox)

    async def _pushes(self) -> None:
        while True:
            await asyncio.sleep(PUSH_S if self._notifications else SWEEP_S)
            with contextlib.suppress(PlatformUnavailable):
                for node in list(self.nodes.links):
                    await self.nodes.push(node)

    async def _singleton(self) -> None:
        while True:
            with contextlib.suppress(PlatformUnavailable):
                async with self._db.try_advisory_lock("controller-sweep") as lock:
                    while lock is not None and await lock.held():
                        await self.sweep()
                        await asyncio.sleep(SWEEP_S)
            await asyncio.sleep(TAKE_OVER_S)

    async def sweep(self) -> None:
        """One pass over everything that time decides."""
        for row in await self._db.fetch("ctl_due"):
            await converge(self._db, row["id"])
        async with self._db.transaction() as tx:
            for node in await tx.fetch("ctl_lose_nodes", lease_s=LEASE_S):
                get_logger().error("node lost", action="node_lost", node=node["id"])
                for row in await tx.fetch("ctl_node_sandboxes", node=node["id"]):
                    reason = f"node {node['name']} has not been heard of for {LEASE_S:.0f} s"
                    await move(tx, row["id"], State.FAILED, reason=reason)
