"""Tells the worker what the agents say of their commands: one `/v1/watch` stream a sandbox with commands.

A watch begins with all commands the agent knows, so a report lost with this process is made again by its successor.
"""

import asyncio
from typing import Any

from space.base.logs import get_logger
from space.base.tasks import cancel, spawn
from space.dataplane.worker_link import WorkerError, WorkerGoneError, WorkerLink
from space.guest import Event, GuestClient, GuestError, GuestProtocolError, GuestUnreachable

MAX_REPORTS = 1000  # waiting for a worker that restarts; a watch that finds the queue full waits, so nothing is lost
RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # the worker restarts within seconds; the last is the steady pace
ACTIVITY_S = 5.0  # idle deadlines are minutes; one message in 5 s keeps them exact enough
REPORTED = ("id", "state", "pid", "exit_code", "signal", "reason", "started_at", "finished_at")


def _pause(attempt: int) -> float:
    return RETRY_S[min(attempt, len(RETRY_S) - 1)]


class Watcher:
    """The watches of all sandboxes and the queue of reports to the worker."""

    def __init__(self, link: WorkerLink) -> None:
        """Nothing runs before `start`."""
        self._link = link
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_REPORTS)
        self._active_at: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to report, and to watch every sandbox that is here already."""
        self._tasks = [spawn("watcher.report", self._report()), spawn("watcher.find", self._find())]

    async def stop(self) -> None:
        """End the watches and the reporting; what was not reported, a successor reports."""
        await cancel(*self._tasks, *self._watches.values())

    @property
    def watching(self) -> int:
        """How many sandboxes are watched."""
        return len(self._watches)

    def ensure(self, sandbox: str) -> None:
        """Watch this sandbox from now on, until it vanishes."""
        if sandbox not in self._watches:
            self._watches[sandbox] = spawn(f"watcher.{sandbox}", self._watch(sandbox))

    async def start_failed(self, command: str, sandbox: str, reason: str) -> None:
        """Report a command that could not be started."""
        await self._reports.put({"id": command, "sandbox": sandbox, "state": "failed", "reason": reason})

    def active(self, sandbox: str) -> None:
        """Tell the worker, at most once in 5 s a sandbox, that a client uses it."""
        now = asyncio.get_running_loop().time()
        if now - self._active_at.get(sandbox, -ACTIVITY_S) >= ACTIVITY_S:
            self._active_at[sandbox] = now
            spawn("watcher.activity", self._activity(sandbox))

    async def _activity(self, sandbox: str) -> None:
        try:
            await self._link.activity(sandbox)
        except (WorkerError, WorkerGoneError):
            return  # the next use tells again

    async def _find(self) -> None:
        attempt = 0
        while True:
            try:
                for sandbox in await self._link.list():
                    self.ensure(sandbox)
            except (WorkerError, WorkerGoneError):
                await asyncio.sleep(_pause(attempt))
                attempt += 1
            else:
                return

    async def _report(self) -> None:
        while True:
            report = await self._reports.get()
            attempt = 0
            while True:
                try:
                    await self._link.report(report)
                except WorkerGoneError:
                    await asyncio.sleep(_pause(attempt))
                    attempt += 1
                    continue
                except WorkerError as error:
                    get_logger().warning(
                        "report_refused", action="report_refused", sandbox=report["sandbox"], code=error.code
                    )
                break

    async def _watch(self, sandbox: str) -> None:
        told: dict[str, str] = {}
        attempt = 0
        try:
            while True:
                try:
                    sock, _epoch = await self._link.open(sandbox)
                except WorkerError as error:
                    if error.code == "sandbox_not_here":
                        return
                except WorkerGoneError:
                    pass
                else:
                    if await self._follow(sandbox, sock, told):
                        attempt = 0
                await asyncio.sleep(_pause(attempt))
                attempt += 1
        finally:
            self._watches.pop(sandbox, None)
            self._active_at.pop(sandbox, None)

    async def _follow(self, sandbox: str, sock: Any, told: dict[str, str]) -> bool:
        """Follow one watch stream to its end; True when it had begun."""
        begun = False

        async def dial() -> Any:
            return sock

        try:
            async with GuestClient(dial).watch() as events:
                async for event in events:
                    begun = True
                    await self._take(sandbox, event, told)
        except (GuestError, GuestProtocolError, GuestUnreachable, OSError):
            pass
        finally:
            sock.close()
        return begun

    async def _take(self, sandbox: str, event: Event, told: dict[str, str]) -> None:
        if event.type == "snapshot":
            for process in event.fields.get("processes", []):
                await self._tell(sandbox, str(process.get("state")), process, told)
        elif event.type == "process_started":
            await self._tell(sandbox, "running", event.fields, told)
        elif event.type == "process_exited":
            await self._tell(sandbox, "exited", event.fields, told)

    async def _tell(self, sandbox: str, state: str, fields: dict[str, Any], told: dict[str, str]) -> None:
        command = str(fields.get("id"))
        if told.get(command) in (state, "exited"):
            return
        told[command] = state
        report = {name: fields[name] for name in REPORTED if fields.get(name) is not None}
        if at := fields.get("at"):  # a change has one time, a snapshot has both
            report["started_at" if state == "running" else "finished_at"] = at
        report |= {"sandbox": sandbox, "state": state}
        await self._reports.put(report)
