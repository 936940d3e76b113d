"""One node's worker put together: pool, driver, reclaim, link, local socket."""

import asyncio
import contextlib
import hashlib
import json
import os
import pwd
import shutil
from pathlib import Path
from typing import Any

from space.base.logs import get_logger
from space.base.settings import Settings
from space.base.tasks import cancel, spawn
from space.vm.disk import Store
from space.vm.net import Network
from space.vm.probe import choose_driver
from space.wire.node import Capacity, CommandReport, Hello, Template
from space.worker.executor import Executor
from space.worker.link import ControllerLink
from space.worker.local import LocalServer
from space.worker.parts import Parts
from space.worker.reclaim import reclaim
from space.worker.records import Records
from space.worker.slots import Slots

DATAPLANE_USER = "space-dataplane"
RESERVE_MIB = 1024  # the control plane and the host's own services
TEMPLATE_WAIT_S = 2.0  # `space up` may still be building the first one


def namespace_prefix(state_dir: Path) -> str:
    """The start of this worker's namespace names: two workers of one host, told apart by their state directories,
    must not take each other's namespaces for leftovers."""
    return f"space-{hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:6]}-"


class Worker:
    """A node's worker; `open` returns when it takes work."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.store = Store(settings.state_dir, size_mib=settings.pool_size_mib, floor_mib=settings.pool_floor_mib)
        self.network = Network(prefix=namespace_prefix(settings.state_dir))
        self.link = ControllerLink(settings, self._hello)
        self.executor: Executor | None = None
        self._local: LocalServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._parts: Parts | None = None

    async def open(self) -> None:
        """Reclaim, then connect."""
        settings = self._settings
        await self.store.open()
        template = await self._first_template()
        cache = settings.state_dir / "worker"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        driver = await choose_driver(
            settings.vmm, settings.accel, template / "vmlinux", template / "initramfs", cache,
            run_dir=settings.run_dir / "worker", open_taps=self.network.taps,
        )  # fmt: skip
        slots = Slots(settings.uid_base, settings.uid_count)
        records = Records(cache / "sandboxes")
        self._parts = Parts(driver, self.network, self.store, slots, records, settings.boot_timeout)
        self.executor = self.link.executor = Executor(self._parts, self.link.report)
        for record, machine in await reclaim(self._parts):
            self.executor.adopt(record, machine)
        self._local = LocalServer(
            settings.run_dir / "worker" / "worker.sock", self.executor, allowed_uid=_dataplane_uid(),
            report=lambda command: self.link.report(CommandReport(command=command)), activity=self.link.activity,
        )  # fmt: skip
        self._local.open()
        self._task = spawn("controller-link", self.link.run())

    async def close(self) -> None:
        """Let go of the machines; the next worker adopts them."""
        if self._task is not None:
            await cancel(self._task)
        if self._local is not None:
            await self._local.close()
        if self.executor is not None:
            await self.executor.close()
        if self._parts is not None:
            await self._parts.driver.close()
        await self.network.close()

    async def _first_template(self) -> Path:
        while not (found := self.store.templates()):
            get_logger().info("waiting for a template", action="waiting_for_template")
            await asyncio.sleep(TEMPLATE_WAIT_S)
        return next(iter(found.values()))

    def _hello(self, node: str) -> Hello:
        assert self._parts is not None
        assert self.executor is not None
        driver = self._parts.driver
        return Hello(
            node=node, capacity=self._capacity(), templates=self._templates(), sandboxes=self.executor.present(),
            machine={"driver": driver.name, "isolation": driver.isolation, "version": driver.version,
                     "accel": "kvm" if driver.isolation == "kvm" else "tcg"},
            data_plane_url=self._settings.public_data_plane_url,
        )  # fmt: skip

    def _capacity(self) -> Capacity:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        # Copy-on-write disks rarely fill: the pool's size counts, and the floor refuses before it is full.
        disk = shutil.disk_usage(self.store.pool).total >> 20
        return Capacity(
            vcpus=os.cpu_count() or 1, memory_mib=max(0, memory - RESERVE_MIB), disk_mib=disk,
            max_sandboxes=self._settings.uid_count,
        )  # fmt: skip

    def _templates(self) -> list[Template]:
        found = []
        for name, path in self.store.templates().items():
            manifest: dict[str, Any] = {}
            with contextlib.suppress(OSError, ValueError):
                manifest = json.loads((path / "manifest.json").read_bytes())
            size = (path / "rootfs.ext4").stat().st_size >> 20
            manifest.pop("packages", None)  # hundreds of lines that placement has no use for
            found.append(Template(name=name, digest=f"sha256:{path.name}", size_mib=size, manifest=manifest))
        return found


def _dataplane_uid() -> int:
    try:
        return pwd.getpwnam(DATAPLANE_USER).pw_uid
    except KeyError:
        return 0  # no such user here: only root is answered
