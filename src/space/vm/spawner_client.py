"""The owner's side of the spawner: start it, ask it for machines, hear how they ended.

From: vm/qemu
To: vm/spawner
"""

import array
import asyncio
import contextlib
import json
import socket
import sys
from dataclasses import asdict
from typing import Any

from space.vm.base import MachineError
from space.vm.jail import Plan

ANSWER_MAX = 65536
ANSWER_S = 20.0  # a spawn takes about 30 ms; on a host with both cores busy, seconds
EXITS_KEPT = 4096  # exits nobody asked about yet; the oldest is dropped


class Spawner:
    """One spawner process. Not shared between event loops."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self.process = process
        self._control = control
        self._next = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._exits: dict[int, tuple[int, int]] = {}
        self._exit_waiters: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(control.fileno(), self._readable)

    @classmethod
    async def start(cls) -> "Spawner":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "space.vm.spawner", str(theirs.fileno()), pass_fds=[theirs.fileno()]
            )
        ours.setblocking(False)
        return cls(process, ours)

    async def close(self) -> None:
        """Let the spawner go; the machines it started keep running."""
        if self._control.fileno() < 0:
            return
        self._gone("the spawner was closed")
        await self.process.wait()

    def _gone(self, why: str) -> None:
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        waiting: list[asyncio.Future[Any]] = [*self._answers.values(), *self._exit_waiters.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(MachineError("spawner", why))
        self._answers.clear()
        self._exit_waiters.clear()

    def _readable(self) -> None:
        try:
            data = self._control.recv(ANSWER_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone("the spawner ended")
            return
        message = json.loads(data)
        if message.get("event") == "exit":
            self._exited(message["pid"], (message["code"], message["signal"]))
            return
        future = self._answers.pop(message["id"], None)
        if future and not future.done():
            future.set_result(message)

    def _exited(self, pid: int, how: tuple[int, int]) -> None:
        self._exits[pid] = how
        while len(self._exits) > EXITS_KEPT:
            del self._exits[next(iter(self._exits))]
        waiter = self._exit_waiters.pop(pid, None)
        if waiter and not waiter.done():
            waiter.set_result(how)

    async def _ask(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        if self._control.fileno() < 0:
            raise MachineError("spawner", "the spawner is not running")
        self._next += 1
        number = self._next
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._answers[number] = future
        try:
            self._send(json.dumps({"id": number, **request}).encode(), fds)
            return await asyncio.wait_for(future, ANSWER_S)
        except (OSError, TimeoutError) as error:
            raise MachineError("spawner", f"the spawner does not answer: {error!r}") from error
        finally:
            self._answers.pop(number, None)

    def _send(self, data: bytes, fds: list[int]) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._control.sendmsg([data], ancillary)

    async def spawn(self, plan: Plan, fds: list[int], log: int) -> int:
        """Start the jailed process with `fds` at 3, 4, … and its output on `log`; returns its pid on the host."""
        answer = await self._ask({"op": "spawn", "plan": asdict(plan)}, [*fds, log])
        if "error" in answer or "pid" not in answer:
            raise MachineError("jail", str(answer.get("error", "the jailed process ended before it was started")))
        self._exits.pop(answer["pid"], None)
        return int(answer["pid"])

    async def empty_root(self, pid: int) -> None:
        answer = await self._ask({"op": "empty_root", "pid": pid}, [])
        if "error" in answer:
            raise MachineError("empty-root", str(answer["error"]))

    async def exit_of(self, pid: int, timeout_s: float) -> tuple[int, int] | None:
        """(exit code, signal) of a process this spawner started, None if it does not say in time."""
        if pid in self._exits:
            return self._exits.pop(pid)
        if self._control.fileno() < 0:
            return None
        waiter = self._exit_waiters.setdefault(pid, self._loop.create_future())
        with contextlib.suppress(TimeoutError, MachineError):
            how = await asyncio.wait_for(asyncio.shield(waiter), timeout_s)
            self._exits.pop(pid, None)
            return how
        return None
