"""The QEMU `microvm` driver: a jailed machine, started stopped, its root emptied, then let go.

From: worker
To: vm/spawner_client, vm/cgroup, vm/qmp

Machines live in `run_dir/machines/<id>`: `qmp.sock`, `console.sock`, `record.json`. With kvm the path is the same but
for two arguments; it could not be tried where this was written.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from space.vm import cgroup, qemu_args, tsc
from space.vm.base import Isolation, MachineError, MachineSpec, Record
from space.vm.console import Console
from space.vm.jail import Plan
from space.vm.net import NetworkError
from space.vm.process import Process, start_time
from space.vm.qemu_machine import QemuMachine, note_event, read_log, remove
from space.vm.qmp import Qmp
from space.vm.spawner_client import Spawner

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # it becomes a folder's and a control group's name
SPARE_MIB = 64  # added to the largest file a machine may write: its disk
MIB = 1 << 20
OpenTaps = Callable[[str], Awaitable[tuple[int, int]]]


class QemuDriver:
    """Starts and finds machines; owns one spawner process, made at the first start."""

    name = "qemu"

    def __init__(self, run_dir: Path, *, isolation: Isolation, version: str, open_taps: OpenTaps | None = None) -> None:
        self.open_taps = open_taps
        self.isolation: Isolation = isolation
        self.version = version
        self.machines_dir = run_dir / "machines"
        self._spawner: Spawner | None = None
        self._starting = asyncio.Lock()
        self._machines: list[QemuMachine] = []

    @classmethod
    async def open(cls, run_dir: Path, isolation: Isolation, open_taps: OpenTaps | None = None) -> "QemuDriver":
        """`open_taps` (`vm.net.Network.taps`) opens both taps of a namespace for a spec that brings none."""
        return cls(run_dir, isolation=isolation, version=await qemu_args.version(), open_taps=open_taps)

    async def spawner(self) -> Spawner:
        """The running spawner; one that ended is replaced, its machines go on and are told from `wait` by pidfd."""
        async with self._starting:
            if self._spawner is None or self._spawner.process.returncode is not None:
                self._spawner = await Spawner.start()
            return self._spawner

    async def close(self) -> None:
        for machine in self._machines:
            await machine.close()
        self._machines.clear()
        if self._spawner:
            await self._spawner.close()

    async def start(self, spec: MachineSpec) -> QemuMachine:
        """Boot a machine; returns when its guest has been let go, not when it is ready."""
        self._check(spec)
        folder = self.machines_dir / spec.id
        try:
            folder.mkdir(parents=True, mode=0o700)
            (folder / "root").mkdir(mode=0o700)
        except OSError as error:
            raise MachineError("jail", f"the machine's folder cannot be made: {error}") from error
        try:
            return await self._start_in(spec, folder)
        except BaseException as error:
            await asyncio.shield(remove({"id": spec.id, "folder": str(folder)}))
            if isinstance(error, OSError):
                raise MachineError("start", str(error)) from error
            raise

    def _check(self, spec: MachineSpec) -> None:
        if not ID.fullmatch(spec.id):
            raise MachineError("start", f"{spec.id!r} cannot name a machine")
        if spec.uid < 1000:
            raise MachineError("start", f"uid {spec.uid} is not a machine's own")
        for phase, path in (("kernel", spec.kernel), ("kernel", spec.initramfs), ("start", spec.disk)):
            if not path.is_file():
                raise MachineError("kernel" if phase == "kernel" else "start", f"{path} is not a file")

    async def _start_in(self, spec: MachineSpec, folder: Path) -> QemuMachine:
        plan = await self._plan(spec, folder)
        with contextlib.ExitStack() as stack:
            fds = await self._descriptors(spec, folder, stack)
            log, log_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, log)
            stack.callback(os.close, log_write)
            spawner = await self.spawner()
            try:
                pid = await spawner.spawn(plan, fds, log_write)
                return await self._let_go(spec, folder, pid, spawner)
            except MachineError as error:
                error.log = error.log or read_log(log)
                raise

    async def _plan(self, spec: MachineSpec, folder: Path) -> Plan:
        khz = await asyncio.to_thread(tsc.khz) if self.isolation == "emulated" else None
        overhead = cgroup.OVERHEAD_MIB[self.isolation]
        group = cgroup.create(spec.id, cgroup.Limits(spec.memory_mib + overhead, spec.vcpus))
        return Plan(
            argv=qemu_args.command_line(spec, self.isolation, khz),
            root=str(folder / "root"),
            binds=await asyncio.to_thread(qemu_args.binds_for, spec, self.isolation),
            devices=["null", "urandom"] + (["kvm"] if self.isolation == "kvm" else []),
            netns=f"/run/netns/{spec.netns}" if spec.netns else None,
            cgroup=[str(path) for path in group],
            uid=spec.uid,
            fsize=spec.disk.stat().st_size + SPARE_MIB * MIB,
            nproc=cgroup.PIDS_MAX,
        )

    async def _descriptors(self, spec: MachineSpec, folder: Path, stack: contextlib.ExitStack) -> list[int]:
        """In the order that `qemu_args` names: monitor, console, disk, egress tap, control tap."""
        sockets = [stack.enter_context(_listen(folder / name)) for name in ("qmp.sock", "console.sock")]
        disk = os.open(spec.disk, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        stack.callback(os.close, disk)
        if not spec.netns:
            return [*(one.fileno() for one in sockets), disk]
        taps = spec.taps or await self._open_taps(spec.netns, stack)
        return [*(one.fileno() for one in sockets), disk, *taps]

    async def _open_taps(self, netns: str, stack: contextlib.ExitStack) -> tuple[int, int]:
        if self.open_taps is None:
            raise MachineError("start", "neither the spec nor the driver has taps")
        try:
            taps = await self.open_taps(netns)
        except NetworkError as error:
            raise MachineError("start", str(error)) from error
        for fd in taps:
            stack.callback(os.close, fd)
        return taps

    async def _let_go(self, spec: MachineSpec, folder: Path, pid: int, spawner: Spawner) -> QemuMachine:
        process = Process.hold(pid)
        record: Record = {
            "driver": self.name,
            "isolation": self.isolation,
            "id": spec.id,
            "pid": pid,
            "started": process.started,
            "folder": str(folder),
            "uid": spec.uid,
            "netns": spec.netns,
            "spec": {name: str(value) if isinstance(value, Path) else value for name, value in asdict(spec).items()},
        }
        try:
            (folder / "record.json").write_text(json.dumps(record))
            machine = await self._attach(record, process, spawner)
            try:
                await spawner.empty_root(pid)
                await machine.resume()
            except BaseException:
                await machine.close()
                raise
        except BaseException:
            process.kill()
            process.close()
            raise
        self._machines.append(machine)
        return machine

    async def _attach(self, record: Record, process: Process, spawner: Spawner | None) -> QemuMachine:
        folder = Path(record["folder"])
        early: list[tuple[str, dict[str, Any]]] = []
        made: list[QemuMachine] = []

        def on_event(name: str, data: dict[str, Any]) -> None:
            if made:
                note_event(made[0], name, data)
            else:
                early.append((name, data))

        console = await Console.connect(folder / "console.sock")
        try:
            qmp = await Qmp.connect(folder / "qmp.sock", on_event)
        except BaseException:
            await console.close()
            raise
        machine = QemuMachine(record, process, qmp, console, spawner)
        made.append(machine)
        for name, data in early:
            note_event(machine, name, data)
        return machine

    async def adopt(self, record: Record) -> QemuMachine:
        """Take up a machine that another process started; raises MachineError if it is gone (then `remove` it)."""
        try:
            pid, started, uid = int(record["pid"]), int(record["started"]), int(record["uid"])
        except (KeyError, TypeError, ValueError) as error:
            raise MachineError("adopt", f"the record is not a machine's: {error!r}") from error
        process = Process.hold(pid, started)
        try:
            _check_owner(pid, uid)
            machine = await self._attach(record, process, None)
            # Its driver may have died between start and the emptied root; doing it again is harmless.
            await (await self.spawner()).empty_root(pid)
            if await machine.status() == "prelaunch":
                await machine.resume()
        except BaseException:
            process.close()
            raise
        self._machines.append(machine)
        return machine

    def found(self) -> list[Record]:
        """A record of every machine folder; one without `pid` is the rest of a start that was cut off: `remove` it."""
        records: list[Record] = []
        for folder in sorted(self.machines_dir.glob("*")):
            try:
                record = json.loads((folder / "record.json").read_text())
            except (OSError, ValueError):
                record = {"id": folder.name, "folder": str(folder)}
            records.append(record)
        return records

    async def remove(self, record: Record) -> None:
        """Kill and remove whatever is left of a machine that cannot be adopted."""
        pid, started = record.get("pid"), record.get("started")
        if isinstance(pid, int) and start_time(pid) == started:
            with contextlib.suppress(MachineError):
                process = Process.hold(pid, started)
                process.kill()
                await process.wait()
                process.close()
        await remove(record)


def _check_owner(pid: int, uid: int) -> None:
    if os.stat(f"/proc/{pid}").st_uid != uid:
        raise MachineError("adopt", f"process {pid} runs under another uid")


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener
