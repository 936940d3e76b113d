"""Client of the worker's unix socket: guest streams by descriptor passing, reports, the console.

Every connection carries one request at a time; a few idle ones are kept. A request is a JSON line, its answer is a JSON
line, and the answer to `open` brings one connected descriptor (SCM_RIGHTS).
"""

import array
import asyncio
import base64
import json
import socket
from collections import deque
from pathlib import Path
from typing import Any

MAX_REPLY = 8 * 1024 * 1024  # the console's tail, in base64, is the largest answer
MAX_IDLE = 8  # connections kept; more requests at once dial their own
CALL_TIMEOUT_S = 15.0  # the worker itself gives up on a silent guest sooner
MAX_FDS = 4  # one is expected; more are received only to be closed, never leaked


class WorkerError(Exception):
    """The worker refused: `code` is its answer."""

    def __init__(self, code: str, message: str = "") -> None:
        """Keep the worker's code."""
        super().__init__(message or code)
        self.code = code


class WorkerGoneError(Exception):
    """The worker cannot be reached, or hung up before it answered."""


class _Line:
    """One connection: sends a line, receives a line and at most one descriptor."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()

    async def call(self, message: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.sock, json.dumps(message).encode() + b"\n")
        fds: list[int] = []
        try:
            reply: dict[str, Any] = dict(json.loads(await self._read_line(fds)))
        except BaseException:
            _close_fds(fds)
            raise
        _close_fds(fds[1:])
        return reply, fds[0] if fds else None

    async def _read_line(self, fds: list[int]) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_REPLY:
                raise WorkerGoneError("the worker's answer is too long")
            try:
                data = self._receive(fds)
            except BlockingIOError:
                await _readable(self.sock)
                continue
            if not data:
                raise WorkerGoneError("the worker hung up")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _receive(self, fds: list[int]) -> bytes:
        room = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
        data, ancillary, _flags, _ = self.sock.recvmsg(65536, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                got = array.array("i")
                got.frombytes(payload[: len(payload) - len(payload) % got.itemsize])
                fds.extend(got)
        return data


def _close_fds(fds: list[int]) -> None:
    for fd in fds:
        socket.close(fd)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_reader(sock.fileno())


class WorkerLink:
    """Requests to the worker beside this process."""

    def __init__(self, path: Path) -> None:
        """`path` is the worker's socket; nothing is dialled before the first call."""
        self._path = path
        self._idle: deque[_Line] = deque()
        self._closed = False

    def close(self) -> None:
        """Close the idle connections."""
        self._closed = True
        while self._idle:
            self._idle.pop().sock.close()

    async def _dial(self) -> _Line:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, str(self._path))
        except BaseException:
            sock.close()
            raise
        return _Line(sock)

    async def _call(self, message: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await self._call_or_redial(message)
        except TimeoutError:
            raise WorkerGoneError("the worker did not answer in time") from None
        except (OSError, ValueError, TypeError) as error:
            raise WorkerGoneError(str(error)) from error

    async def _call_or_redial(self, message: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        while self._idle:
            # An idle connection may be of a worker that was restarted since: every request may be sent again.
            try:
                return await self._on(self._idle.pop(), message)
            except (OSError, WorkerGoneError):
                continue
        return await self._on(await self._dial(), message)

    async def _on(self, line: _Line, message: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        try:
            result = await line.call(message)
        except BaseException:
            line.sock.close()
            raise
        if self._closed or len(self._idle) >= MAX_IDLE:
            line.sock.close()
        else:
            self._idle.append(line)
        return result

    async def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        reply, fd = await self._call(message)
        if fd is not None:
            socket.close(fd)
        if reply.get("ok") is False:
            raise WorkerError(str(reply.get("code", "refused")), str(reply.get("message", "")))
        return reply

    async def open(self, sandbox: str) -> tuple[socket.socket, int]:
        """Return a connected, non-blocking guest stream and the sandbox's epoch.

        Raises WorkerError (`sandbox_not_here`, `guest_unreachable`) and WorkerGoneError.
        """
        reply, fd = await self._call({"op": "open", "sandbox": sandbox})
        if reply.get("ok") is not True or fd is None:
            if fd is not None:
                socket.close(fd)
            raise WorkerError(str(reply.get("code", "guest_unreachable")), str(reply.get("message", "")))
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        return sock, int(reply.get("epoch", 0))

    async def list(self) -> dict[str, int]:
        """Return the sandboxes that run here, with their epochs."""
        reply = await self._ask({"op": "list"})
        return {str(entry["id"]): int(entry["epoch"]) for entry in reply.get("sandboxes", [])}

    async def report(self, command: dict[str, Any]) -> None:
        """Hand over the state of one command."""
        await self._ask({"op": "report", "command": command})

    async def activity(self, sandbox: str) -> None:
        """Say that a client uses the sandbox."""
        await self._ask({"op": "activity", "sandbox": sandbox})

    async def console(self, sandbox: str) -> bytes:
        """Return the tail of the serial console."""
        reply = await self._ask({"op": "console", "sandbox": sandbox})
        return base64.b64decode(str(reply.get("data", "")))
