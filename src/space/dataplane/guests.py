"""Guest clients over streams that the worker hands out, with the worker's and the guest's faults in catalogue words."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from space.base.tasks import cancel, spawn
from space.dataplane.worker_link import WorkerError, WorkerGoneError, WorkerLink
from space.domain.errors import (
    CommandNotFound,
    GuestUnreachable,
    InvalidRequest,
    PlatformUnavailable,
    SandboxNotFound,
    StateConflict,
)
from space.guest import Attachment, GuestClient, GuestError
from space.guest import GuestUnreachable as GuestGoneError

NO_OUTPUT = 2**63 - 1  # a sequence number no output reaches
REPLY_S = 10.0  # an emulated machine answers within 1 s under load; a stopped one never does


class Guests:
    """Opens guest streams."""

    def __init__(self, link: WorkerLink) -> None:
        """`link` leads to the worker of this node."""
        self._link = link

    @asynccontextmanager
    async def client(self, sandbox: str) -> AsyncIterator[tuple[GuestClient, int]]:
        """Give a client of the sandbox's agent, and the epoch. Every stream dialled is closed at the end."""
        opened: list[socket.socket] = []
        first, epoch = await self._open(sandbox)
        waiting = [first]

        async def dial() -> socket.socket:
            sock = waiting.pop() if waiting else (await self._open(sandbox))[0]
            opened.append(sock)
            return sock

        try:
            yield GuestClient(dial), epoch
        finally:
            for sock in (*waiting, *opened):
                sock.close()

    async def _open(self, sandbox: str) -> tuple[socket.socket, int]:
        try:
            return await self._link.open(sandbox)
        except WorkerError as error:
            if error.code == "sandbox_not_here":
                raise SandboxNotFound("the sandbox does not run on this node") from error
            raise GuestUnreachable from error
        except WorkerGoneError as error:
            raise GuestUnreachable(
                "the worker on this node does not answer", hint="Try again; `space status` shows which part is down."
            ) from error

    @asynccontextmanager
    async def call(self, sandbox: str) -> AsyncIterator[GuestClient]:
        """Give a client for one short exchange: silence is `guest_unreachable`, refusals are in catalogue words."""
        try:
            async with self.client(sandbox) as (client, _), asyncio.timeout(REPLY_S):
                yield client
        except (TimeoutError, GuestGoneError, OSError) as error:
            raise GuestUnreachable from error
        except GuestError as error:
            if error.code == "unknown_process":
                raise CommandNotFound("the sandbox knows no such command, or it was not started") from error
            raise InvalidRequest(f"the guest refused: {error.message}") from error

    async def console(self, sandbox: str) -> bytes:
        """Return the tail of the serial console, from the worker."""
        try:
            return await self._link.console(sandbox)
        except WorkerError as error:
            raise SandboxNotFound("the sandbox does not run on this node") from error
        except WorkerGoneError as error:
            raise PlatformUnavailable("the worker on this node does not answer") from error

    @asynccontextmanager
    async def stdin(self, sandbox: str, command: str) -> AsyncIterator[Attachment]:
        """Give an attachment that only sends: it reads past the end of the output, so it holds nobody up.

        What the guest sends on it (credit, heartbeats) is read beside, or no credit would arrive.
        """
        try:
            async with self.client(sandbox) as (client, _), AsyncExitStack() as stack:
                async with asyncio.timeout(REPLY_S):
                    attachment = await stack.enter_async_context(client.attach(command, spec=None, after=NO_OUTPUT))
                reader = spawn("stdin.drain", _drain(attachment))
                try:
                    yield attachment
                finally:
                    await cancel(reader)
        except (TimeoutError, GuestGoneError, OSError) as error:
            raise GuestUnreachable from error
        except GuestError as error:
            if error.code == "unknown_process":
                raise CommandNotFound("the sandbox knows no such command, or it was not started") from error
            raise StateConflict(f"the guest refused the input: {error.message}") from error


async def _drain(attachment: Attachment) -> None:
    try:
        async for _frame in attachment:
            pass
    except (GuestGoneError, GuestError, OSError):
        return  # the sender sees the same
