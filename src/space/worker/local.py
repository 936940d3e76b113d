"""The unix socket for the data plane beside this worker: guest streams by descriptor passing, reports, the console."""

import asyncio
import base64
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from space.base.logs import get_logger
from space.base.tasks import cancel, spawn
from space.vm.net import NetworkError
from space.wire import local
from space.wire.lines import MAX_LINE, LineError, encode, parse
from space.wire.node import CommandState
from space.worker.executor import Executor

DIAL_S = 5.0  # the agent answers in milliseconds; the data plane waits 15 s in all
CONSOLE_BYTES = 65536  # with base64 well below one line's bound
MAX_CLIENTS = 256  # a data plane keeps eight; a runaway one must not take all descriptors


class LocalServer:
    """Listens on `path`; only root and `allowed_uid` are answered."""

    def __init__(
        self,
        path: Path,
        executor: Executor,
        *,
        allowed_uid: int,
        report: Callable[[CommandState], None],
        activity: Callable[[str], None],
    ) -> None:
        self._path = path
        self._executor = executor
        self._allowed = {0, allowed_uid}
        self._report = report
        self._activity = activity
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Listen; the folder's group decides who can reach the socket at all."""
        self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        listener.bind(str(self._path))
        os.chown(self._path, 0, self._path.parent.stat().st_gid)
        self._path.chmod(0o660)
        listener.listen(64)
        self._socket = listener
        self._hold(spawn("local-accept", self._accept(listener)))

    async def close(self) -> None:
        """Stop listening and end every conversation; streams already handed over go on."""
        await cancel(*self._tasks)
        if self._socket is not None:
            self._socket.close()
        self._path.unlink(missing_ok=True)

    def _hold(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setblocking(False)
            _pid, uid, _gid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid not in self._allowed or len(self._tasks) > MAX_CLIENTS:
                get_logger().warning("local client refused", action="local_refused", uid=uid)
                client.close()
                continue
            self._hold(spawn("local-client", self._serve(client)))

    async def _serve(self, client: socket.socket) -> None:
        loop, buffer = asyncio.get_running_loop(), bytearray()
        with client:
            try:
                while data := await loop.sock_recv(client, 65536):
                    buffer += data
                    while (end := buffer.find(b"\n")) >= 0:
                        line = bytes(buffer[:end])
                        del buffer[: end + 1]
                        await self._answer(client, line)
                    if len(buffer) > MAX_LINE:
                        return
            except OSError as error:
                get_logger().info("local client broke", action="local_broken", error=str(error))

    async def _answer(self, client: socket.socket, line: bytes) -> None:
        stream: socket.socket | None = None
        try:
            request = local.requests.validate_python(parse(line))
            reply, stream = await self._handle(request)
        except (ValidationError, LineError) as error:
            reply = {"ok": False, "code": "bad_request", "message": str(error)[:500]}
        data = encode(reply)
        if stream is None:
            await asyncio.get_running_loop().sock_sendall(client, data)
            return
        with stream:
            # The answer to `open` is a few dozen bytes: it fits the socket's buffer or the client reads nothing.
            sent = socket.send_fds(client, [data], [stream.fileno()])
            await asyncio.get_running_loop().sock_sendall(client, data[sent:])

    async def _handle(  # noqa: PLR0911 - one return a verb
        self, request: Any
    ) -> tuple[dict[str, Any], socket.socket | None]:
        if isinstance(request, local.List):
            present = self._executor.present()
            return {
                "ok": True,
                "sandboxes": [{"id": p.id, "epoch": p.epoch} for p in present if p.state == "running"],
            }, None
        if isinstance(request, local.Report):
            self._report(request.command)
            return {"ok": True}, None
        keeper = self._executor.running(request.sandbox)
        if isinstance(request, local.Console):
            anyone = self._executor.keepers.get(request.sandbox)
            if anyone is None or anyone.work.machine is None:
                return _refused("sandbox_not_here"), None
            data = await anyone.work.machine.console(CONSOLE_BYTES)
            return {"ok": True, "data": base64.b64encode(data).decode()}, None
        if keeper is None:
            return _refused("sandbox_not_here"), None
        self._activity(request.sandbox)
        if isinstance(request, local.Activity):
            return {"ok": True}, None
        netns = keeper.work.record.netns
        assert netns is not None
        try:
            stream = await self._executor.parts.network.dial(netns, DIAL_S)
        except (OSError, TimeoutError, NetworkError) as error:
            return _refused("guest_unreachable", str(error)), None
        return {"ok": True, "epoch": keeper.assign.epoch}, stream


def _refused(code: str, message: str = "") -> dict[str, Any]:
    return {"ok": False, "code": code, "message": message}
