"""A QMP client for a peer that may be hostile: bounded lines, checked shapes, events reduced to what is used.

From: vm/qemu
To: QEMU's monitor socket
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from space.base import tasks
from space.vm.base import MachineError

LINE_MAX = 65536  # the longest answer that is asked for is a few hundred bytes
CONNECT_S = 10.0
COMMAND_S = 10.0
EVENTS_PER_S = 200  # a guest can make events; more in one second is an attack on this process's time
Event = tuple[str, dict[str, Any]]


def parse_line(line: bytes) -> dict[str, Any]:
    """One JSON object, or MachineError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MachineError("monitor", f"not JSON: {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise MachineError("monitor", f"not an object: {line[:80]!r}")
    return message


def parse_event(message: dict[str, Any]) -> Event:
    """(name, data) of an event, or MachineError."""
    name, data = message.get("event"), message.get("data", {})
    if not isinstance(name, str) or len(name) > 64 or not isinstance(data, dict):
        raise MachineError("monitor", "an event of another shape")
    return name, data


def _check_greeting(message: dict[str, Any] | None) -> None:
    if message is None or "QMP" not in message:
        raise MachineError("monitor", "no greeting")


class Qmp:
    """One monitor connection. After any malformed input it is closed and every command raises MachineError."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_event: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._reader, self._writer, self._on_event = reader, writer, on_event
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._turn = asyncio.Lock()
        self.error: MachineError | None = None
        self.closed = asyncio.Event()
        self._second, self._count = 0, 0
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, path: Path, on_event: Callable[[str, dict[str, Any]], None]) -> "Qmp":
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_unix_connection(path, limit=LINE_MAX)
        except (OSError, TimeoutError) as error:
            raise MachineError("monitor", f"no connection: {error!r}") from error
        qmp = cls(reader, writer, on_event)
        try:
            async with asyncio.timeout(CONNECT_S):
                greeting = await qmp._line()
            _check_greeting(greeting)
            qmp._task = tasks.spawn("qmp", qmp._run())
            await qmp.command("qmp_capabilities")
        except (TimeoutError, MachineError) as error:
            await qmp.close()
            raise (
                error if isinstance(error, MachineError) else MachineError("monitor", "no greeting in time")
            ) from error
        return qmp

    async def _line(self) -> dict[str, Any] | None:
        try:
            line = await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, OSError):
            return None
        except asyncio.LimitOverrunError as error:
            raise MachineError("monitor", f"a line longer than {LINE_MAX} bytes") from error
        return parse_line(line)

    async def _run(self) -> None:
        try:
            while (message := await self._line()) is not None:
                self._take(message)
            self._fail(MachineError("monitor", "the monitor was closed"))
        except MachineError as error:
            self._fail(error)
        finally:
            self._writer.close()
            self.closed.set()

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self._count_event()
            self._on_event(*parse_event(message))
        elif self._answer is None or self._answer.done():
            raise MachineError("monitor", "an answer to no question")
        else:
            self._answer.set_result(message)

    def _count_event(self) -> None:
        second = int(asyncio.get_running_loop().time())
        self._second, self._count = second, self._count + 1 if second == self._second else 1
        if self._count > EVENTS_PER_S:
            raise MachineError("monitor", f"more than {EVENTS_PER_S} events in a second")

    def _fail(self, error: MachineError) -> None:
        self.error = self.error or error
        if self._answer and not self._answer.done():
            self._answer.set_exception(self.error)

    async def command(self, name: str, **arguments: Any) -> Any:
        """The command's return value; MachineError if QEMU refuses, lies about the shape or does not answer in time."""
        async with self._turn:
            if self.error:
                raise self.error
            self._answer = asyncio.get_running_loop().create_future()
            try:
                self._writer.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
                async with asyncio.timeout(COMMAND_S):
                    message = await self._answer
            except (OSError, TimeoutError) as error:
                # A late answer would be taken for the next question's: this connection is done for.
                self._fail(MachineError("monitor", f"{name}: {error!r}"))
                self._writer.close()
                raise MachineError("monitor", f"{name}: {error!r}") from error
            finally:
                self._answer = None
        if "return" not in message:
            raise MachineError("control", f"{name} was refused: {str(message.get('error'))[:200]}")
        return message["return"]

    async def close(self) -> None:
        self._fail(MachineError("monitor", "the monitor connection was closed here"))
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        if self._task:
            await tasks.cancel(self._task)
