"""One running QEMU machine: control, end, removal.

A Debian guest kernel has no panic device here, so a panic reaches QEMU as a reset; it is told apart by the panic line
on the console, which is the guest's own word, like every `guest-*` reason.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any, get_args

from space.vm import cgroup
from space.vm.base import ExitInfo, ExitReason, MachineError, Record
from space.vm.console import RING, Console
from space.vm.process import Process
from space.vm.qmp import Qmp
from space.vm.spawner_client import Spawner

EXIT_REPORT_S = 2.0  # the spawner reports within milliseconds of the pidfd
DRAIN_S = 2.0  # for the last lines of console and monitor after the process ended
KILL_S = 20.0  # a killed process frees its guest's memory first
LOG_MAX = 16384
PANIC = b"Kernel panic - not syncing"
REASONS = {"host-qmp-quit": "host-quit", "host-ui": "host-quit"}  # QEMU's names where ours differ


class QemuMachine:
    """`record` is JSON and outlives this object."""

    def __init__(self, record: Record, process: Process, qmp: Qmp, console: Console, spawner: Spawner | None) -> None:
        self.record = record
        self.console_ring = console
        self._process, self._qmp, self._spawner = process, qmp, spawner
        self.shutdown: str | None = None
        self._exit: ExitInfo | None = None
        self._waiting = asyncio.Lock()
        self._killed = False

    @property
    def id(self) -> str:
        return str(self.record["id"])

    @property
    def pid(self) -> int:
        return self._process.pid

    async def pause(self) -> None:
        await self._qmp.command("stop")

    async def resume(self) -> None:
        await self._qmp.command("cont")

    async def status(self) -> str:
        """QEMU's run state: `running`, `paused`, `prelaunch`, …"""
        answer = await self._qmp.command("query-status")
        if not isinstance(answer, dict) or not isinstance(answer.get("status"), str):
            raise MachineError("monitor", "query-status has another shape")
        return str(answer["status"])

    async def console(self, limit: int = RING) -> bytes:
        return self.console_ring.tail(limit)

    async def wait(self) -> ExitInfo:
        await self._process.wait()
        async with self._waiting:
            if self._exit is None:
                self._exit = await self._how_it_ended()
        return self._exit

    async def _how_it_ended(self) -> ExitInfo:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._qmp.closed.wait()
        how = await self._spawner.exit_of(self.pid, EXIT_REPORT_S) if self._spawner else None
        code, number = how or (None, 0)
        if number:
            return ExitInfo(None, "host-signal", number)
        if self.shutdown is None and self._killed:
            return ExitInfo(None, "host-signal", signal.SIGKILL)
        if self.shutdown is None:
            return ExitInfo(code, "host-error" if code else "lost")
        if self.shutdown == "guest-reset":
            await self.console_ring.drained(DRAIN_S)
            if PANIC in self.console_ring.tail():
                return ExitInfo(code, "guest-panic")
        reason = REASONS.get(self.shutdown, self.shutdown)
        return ExitInfo(code, reason if reason in get_args(ExitReason) else "host-error")  # type: ignore[arg-type]

    async def kill(self) -> None:
        self._killed = not self._process.ended
        self._process.kill()
        try:
            async with asyncio.timeout(KILL_S):
                await self.wait()
        except TimeoutError as error:
            raise MachineError("kill", f"process {self.pid} does not end") from error
        await self.close()
        await remove(self.record)

    async def close(self) -> None:
        """Let go of the machine; it keeps running."""
        await self._qmp.close()
        await self.console_ring.close()
        self._process.close()

    def on_event(self, name: str, data: dict[str, Any]) -> None:
        note_event(self, name, data)


def note_event(machine: QemuMachine, name: str, data: dict[str, Any]) -> None:
    if name == "SHUTDOWN":
        machine.shutdown = str(data.get("reason"))[:64]
    elif name == "GUEST_PANICKED":
        machine.shutdown = "guest-panic"


async def remove(record: Record) -> None:
    """Remove what a machine left: processes, control group, sockets, folder. Fine to repeat, and after a crash."""
    await cgroup.remove(cgroup.folders(str(record["id"])))
    folder = Path(record["folder"])
    await asyncio.to_thread(_remove_folder, folder)


def _remove_folder(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise MachineError("kill", f"{folder} cannot be removed: {error}") from error


def read_log(fd: int) -> str:
    """What the process wrote to its error output; the pipe is not emptied while it runs and drops what does not fit."""
    try:
        return os.read(fd, LOG_MAX).decode(errors="replace")
    except BlockingIOError:
        return ""
