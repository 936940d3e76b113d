"""Attaching to a command: from its guest stream to the client's NDJSON response, at the client's pace.

Nothing is read from the guest while the client does not take what was read before, so one frame and the server's write
buffer (64 KiB) is all that is held. A guest stream that breaks ends the response with `{"type":"stream_lost","reason"}`
and never with an exit that was not seen; reasons are `guest_unreachable`, `guest_protocol`, `data_plane_stopping`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from space.base.tasks import cancel, spawn
from space.dataplane import events
from space.dataplane.api_link import ApiLink
from space.dataplane.guests import REPLY_S, Guests
from space.dataplane.http import Reply, Request
from space.dataplane.problems import ApiRefusedError
from space.dataplane.tokens import Grant
from space.dataplane.watcher import Watcher
from space.domain.errors import CommandNotFound, GuestUnreachable, StateConflict
from space.guest import Attachment, Event, GuestError, StartSpec
from space.guest import GuestProtocolError as ProtocolBrokenError
from space.guest import GuestUnreachable as GuestGoneError

BEAT_S = 10.0  # API.md's promise; the guest client itself gives up on a guest that misses three beats of its own
KNOWN = 20_000  # ids of started commands kept; a forgotten one costs one more question to the API
START_FAILURES = frozenset(
    {"executable_not_found", "cwd_not_found", "permission_denied", "user_not_found", "start_failed"}
)
SPEC_FIELDS = ("command", "cwd", "env", "user", "tty", "stdin", "timeout_ms")


class NotStartedError(Exception):
    """The guest could not start the command: `code` and `path` are its answer."""

    def __init__(self, error: GuestError, epoch: int) -> None:
        """Keep what the guest said."""
        super().__init__(error.message)
        self.code = error.code
        self.path = getattr(error, "path", None)
        self.message = error.message
        self.epoch = epoch


@dataclass
class _Flow:
    """Where a stream stands, for the one that watches over it."""

    epoch: int
    last: int
    waiting_since: float | None = None


class Attacher:
    """Starts and follows commands."""

    def __init__(self, guests: Guests, api: ApiLink, watcher: Watcher) -> None:
        """Keeps only which commands were started lately."""
        self._guests = guests
        self._api = api
        self._watcher = watcher
        self._known: OrderedDict[str, None] = OrderedDict()
        self.stopping = asyncio.Event()
        self.streams = 0

    def _remember(self, command: str) -> None:
        self._known[command] = None
        self._known.move_to_end(command)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    async def _spec(self, grant: Grant, command: str, request_id: str) -> StartSpec | None:
        """The specification to start with; None when the command was started and the API gives it no more."""
        if command in self._known:
            return None
        try:
            document = await self._api.spec(command, grant.token, request_id)
        except ApiRefusedError as error:
            if error.status == 409:
                return None
            raise
        if document.get("state", "created") != "created":
            return None  # it ran once; a machine that has forgotten it must not run it again
        spec: dict[str, Any] = document["spec"]
        return StartSpec(**{name: spec[name] for name in SPEC_FIELDS if spec.get(name) is not None})

    async def _enter(
        self, stack: AsyncExitStack, grant: Grant, command: str, spec: StartSpec | None, request: Request
    ) -> tuple[Attachment, int]:
        client, epoch = await stack.enter_async_context(self._guests.client(grant.sandbox))
        after = events.after_of(request.query.get("after"), epoch)
        follow = request.method == "GET"
        try:
            async with asyncio.timeout(REPLY_S):
                attachment = await stack.enter_async_context(client.attach(command, spec=spec, after=after))
        except (TimeoutError, GuestGoneError) as error:
            raise GuestUnreachable from error
        except GuestError as error:
            raise await self._refusal(error, grant, command, epoch, follow=follow) from error
        self._remember(command)
        self._watcher.ensure(grant.sandbox)
        self._watcher.active(grant.sandbox)
        return attachment, epoch

    async def _refusal(self, error: GuestError, grant: Grant, command: str, epoch: int, *, follow: bool) -> Exception:
        if error.code in START_FAILURES:
            await self._watcher.start_failed(command, grant.sandbox, error.code)
            return NotStartedError(error, epoch)
        if error.code != "unknown_process":
            return GuestUnreachable(f"the guest refused: {error.code}")
        if not follow or command in self._known:
            return CommandNotFound("the sandbox knows this command no more")
        return StateConflict(
            "the command was not started", hint="POST to the same address starts it; GET only follows."
        )

    async def start(self, grant: Grant, command: str, request: Request) -> None:
        """Start the command and let it run alone. Raises NotStartedError."""
        spec = await self._spec(grant, command, request.request_id)
        async with AsyncExitStack() as stack:
            await self._enter(stack, grant, command, spec, request)

    async def serve(self, request: Request, reply: Reply, grant: Grant, command: str) -> None:
        """Answer an attach: POST starts at its first time, GET only follows."""
        cursor = request.query.get("after")
        events.check_cursor(cursor)
        spec = await self._spec(grant, command, request.request_id) if request.method == "POST" else None
        async with AsyncExitStack() as stack:
            try:
                attachment, epoch = await self._enter(stack, grant, command, spec, request)
            except NotStartedError as error:
                await reply.begin(b"application/x-ndjson")
                fields: dict[str, Any] = {"code": error.code, "path": error.path, "message": error.message}
                await reply.write(events.host_line("start_failed", error.epoch, 0, **fields))
                await reply.end()
                return
            await reply.begin(b"application/x-ndjson")
            flow = _Flow(epoch, events.after_of(cursor, epoch))
            self.streams += 1
            try:
                reason = await self._watch_over(
                    request, reply, self._pump(reply, attachment, flow, grant.sandbox), flow
                )
            finally:
                self.streams -= 1
            if reason == "client_gone":
                return
            if reason is not None:
                await reply.write(events.host_line("stream_lost", epoch, flow.last, reason=reason))
            await reply.end()

    async def _watch_over(
        self, request: Request, reply: Reply, pumping: Coroutine[Any, Any, str | None], flow: _Flow
    ) -> str | None:
        """Run the stream, with heartbeats while it is quiet, to its end, the client's hang-up or our own stop."""
        pump = spawn("attach.pump", pumping)
        gone = spawn("attach.gone", request.disconnected())
        stop = spawn("attach.stop", self.stopping.wait())
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await asyncio.wait({pump, gone, stop}, timeout=BEAT_S / 4, return_when=asyncio.FIRST_COMPLETED)
                if pump.done():
                    return pump.result()
                if gone.done():
                    return "client_gone"
                if stop.done():
                    return "data_plane_stopping"
                if flow.waiting_since is not None and clock() - flow.waiting_since > BEAT_S * 0.75:
                    await reply.write(events.host_line("heartbeat", flow.epoch, flow.last))
                    flow.waiting_since = clock()
        finally:
            await cancel(pump, gone, stop)

    async def _pump(self, reply: Reply, attachment: Attachment, flow: _Flow, sandbox: str) -> str | None:
        clock = asyncio.get_running_loop().time
        flow.waiting_since = clock()
        ended = False
        try:
            async for frame in attachment:
                flow.waiting_since = None
                flow.last = frame.seq or flow.last
                ended = isinstance(frame, Event) and frame.type == "stream_closed"
                await reply.write(events.line_of(frame, flow.epoch, flow.last))
                if ended:
                    return None
                self._watcher.active(sandbox)
                flow.waiting_since = clock()
        except ProtocolBrokenError:
            return "guest_protocol"
        except (GuestGoneError, GuestError, OSError):
            return "guest_unreachable"
        return None if ended else "guest_unreachable"
