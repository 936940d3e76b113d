"""The data plane's addresses: a plain ASGI application over commands, sandboxes and health.

Not here yet: WebSocket at the attach address, create-and-attach in one call, files and ports (a later issue).
"""

import base64
import re
from collections.abc import Awaitable, Callable
from typing import Any

from space.base.logs import bind, get_logger
from space.dataplane.attach import Attacher, NotStartedError
from space.dataplane.guests import Guests
from space.dataplane.http import ClientGoneError, Receive, Reply, Request, Scope, Send
from space.dataplane.problems import ApiRefusedError
from space.dataplane.tokens import Verifier
from space.dataplane.watcher import Watcher
from space.domain.errors import (
    CommandStartFailed,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    SpaceError,
)

Handler = Callable[[Request, Reply, str], Awaitable[None]]

_COMMAND = re.compile(r"/v1/commands/(cmd[a-z0-9]{8,64})/(attach|start|stdin|signal|resize)")
_SANDBOX = re.compile(r"/v1/sandboxes/(sbx[a-z0-9]{8,64})/(processes|console)")
MAX_WINDOW = 10_000  # rows or columns of a terminal; the kernel's limit is 65535, no screen has this many


class App:
    """The ASGI application."""

    def __init__(self, verifier: Verifier, guests: Guests, attacher: Attacher, watcher: Watcher) -> None:
        """Wire the handlers to their parts."""
        self._verifier = verifier
        self._guests = guests
        self._attacher = attacher
        self._watcher = watcher
        self._requests: dict[int, int] = {}
        self._routes: dict[str, dict[str, Handler]] = {
            "attach": {"POST": self._attach, "GET": self._attach},
            "start": {"POST": self._start},
            "stdin": {"POST": self._stdin},
            "signal": {"POST": self._signal},
            "resize": {"POST": self._resize},
            "processes": {"GET": self._processes},
            "console": {"GET": self._console},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        reply = Reply(send, request.request_id)
        with bind(request=request.request_id):
            try:
                await self._answer(request, reply)
            except ClientGoneError:
                return
            except ApiRefusedError as error:
                await reply.document(error.status, error.document)
            except SpaceError as error:
                await self._refuse(reply, error)
            except Exception as error:  # noqa: BLE001 (the border: what is not foreseen is told as ours, with its line)
                get_logger().error("request_failed", action="request_failed", path=request.path, exc_info=error)
                await self._refuse(reply, InternalError())

    async def _refuse(self, reply: Reply, error: SpaceError) -> None:
        if reply.started:
            raise ConnectionAbortedError(error.code) from error  # the server cuts the answer: visibly incomplete
        await reply.problem(error)

    async def _answer(self, request: Request, reply: Reply) -> None:
        if request.path in ("/healthz", "/healthz/metrics"):
            await self._health(request, reply)
            return
        match = _COMMAND.fullmatch(request.path) or _SANDBOX.fullmatch(request.path)
        if match is None:
            raise NotFound
        handler = self._routes[match[2]].get(request.method)
        if handler is None:
            raise MethodNotAllowed
        await handler(request, reply, match[1])

    async def _health(self, request: Request, reply: Reply) -> None:
        numbers = {"streams": self._attacher.streams, "watched_sandboxes": self._watcher.watching}
        if request.path == "/healthz":
            await reply.json(200, {"status": "ok", **numbers})
            return
        text = "".join(f"# TYPE space_dataplane_{k} gauge\nspace_dataplane_{k} {v}\n" for k, v in numbers.items())
        await reply.whole(200, text.encode(), b"text/plain; version=0.0.4")

    async def _attach(self, request: Request, reply: Reply, command: str) -> None:
        grant = self._verifier.command(request.bearer(), command)
        with bind(sandbox=grant.sandbox):
            await self._attacher.serve(request, reply, grant, command)

    async def _start(self, request: Request, reply: Reply, command: str) -> None:
        grant = self._verifier.command(request.bearer(), command)
        try:
            await self._attacher.start(grant, command, request)
        except NotStartedError as error:
            raise CommandStartFailed(f"{error.code}: {error.path or error.message}") from error
        await reply.json(200, {"id": command, "started": True})

    async def _stdin(self, request: Request, reply: Reply, command: str) -> None:
        grant = self._verifier.command(request.bearer(), command)
        close = request.query.get("close", "false") in ("true", "1")
        taken = 0
        async with self._guests.stdin(grant.sandbox, command) as attachment:
            async for chunk in request.chunks():
                await attachment.send_stdin(chunk)
                taken += len(chunk)
                self._watcher.active(grant.sandbox)
            if close:
                await attachment.close_stdin()
        await reply.json(200, {"bytes": taken, "closed": close})

    async def _signal(self, request: Request, reply: Reply, command: str) -> None:
        grant = self._verifier.command(request.bearer(), command, scope="signal")
        name = (await request.json()).get("signal")
        if not isinstance(name, str) or not re.fullmatch(r"SIG[A-Z0-9+]{2,12}", name):
            raise InvalidRequest("signal is a name such as SIGTERM")
        async with self._guests.call(grant.sandbox) as guest:
            await guest.signal(command, name)
        await reply.json(200, {"id": command, "signal": name})

    async def _resize(self, request: Request, reply: Reply, command: str) -> None:
        grant = self._verifier.command(request.bearer(), command)
        body = await request.json()
        size = {name: body.get(name) for name in ("rows", "cols")}
        if not all(type(n) is int and 0 < n <= MAX_WINDOW for n in size.values()):
            raise InvalidRequest(f"rows and cols are whole numbers from 1 to {MAX_WINDOW}")
        rows, cols = int(body["rows"]), int(body["cols"])
        async with self._guests.call(grant.sandbox) as guest:
            await guest.resize(command, rows, cols)
        await reply.json(200, {"id": command, "rows": rows, "cols": cols})

    async def _processes(self, request: Request, reply: Reply, sandbox: str) -> None:
        self._verifier.sandbox(request.bearer(), sandbox, "processes")
        async with self._guests.call(sandbox) as guest:
            found: Any = await guest.system_processes()
        items = [p if isinstance(p, dict) else p.model_dump(mode="json") for p in found]
        await reply.json(200, {"items": items})

    async def _console(self, request: Request, reply: Reply, sandbox: str) -> None:
        self._verifier.sandbox(request.bearer(), sandbox, "console")
        data = await self._guests.console(sandbox)
        await reply.json(200, {"data": base64.b64encode(data).decode()})
