"""The async client of the agent over any dialed stream. Each request has its own connection: dialing costs little."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from space.guest import http
from space.guest.errors import GuestProtocolError, GuestUnreachable
from space.guest.frames import Event, Frame, FrameError, FrameParser, Kind, encode, encode_event

T = TypeVar("T")
PROTOCOL = "space-frames/1"
STDIN_PIECE = 32 * 1024  # half the window: the next piece travels while the agent writes the first
SILENCE = 35.0  # three missed heartbeats and a half: the guest is gone or stopped
DEFAULT_TIMEOUT = 15.0  # software emulation answers in milliseconds, a loaded host in seconds


@dataclass(frozen=True)
class AdoptRequest:
    """What makes a machine one of its own."""

    entropy: bytes
    time_unix_ns: int
    hostname: str
    machine_id: str
    nonce: str
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AdoptReply:
    """The agent's proof that it reseeded."""

    nonce: str
    random: str
    reseeded: bool


@dataclass(frozen=True)
class StartSpec:
    """What to start. ``tty`` is {"rows", "cols"}."""

    command: list[str]
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    tty: dict[str, int] | None = None
    stdin: bool = False
    timeout_ms: int | None = None


async def _guarded(work: Awaitable[T], timeout: float | None) -> T:  # noqa: ASYNC109 - the one place that applies it
    try:
        async with asyncio.timeout(timeout):
            return await work
    except TimeoutError as error:
        raise GuestUnreachable("the guest did not answer in time") from error
    except asyncio.IncompleteReadError as error:
        raise GuestUnreachable("the guest ended the connection") from error
    except OSError as error:
        raise GuestUnreachable(f"the connection to the guest broke: {error}") from error


class Attachment:
    """A live view of one command: iterate its frames, send its input."""

    def __init__(self, stream: http.Stream) -> None:
        self._stream = stream
        self._parser = FrameParser()
        self._credit = 0
        self._more = asyncio.Condition()
        self._ended = False

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """Frames in order, until the stream is closed; heartbeats and credit are kept from the caller."""
        try:
            while data := await _guarded(self._stream.reader.read(http.MAX_HEAD * 4), SILENCE):
                for frame in self._parse(data):
                    if isinstance(frame, Event) and frame.type in ("heartbeat", "stdin_credit"):
                        await self._note(frame)
                        continue
                    yield frame
                    if isinstance(frame, Event) and frame.type == "stream_closed":
                        return
            raise GuestUnreachable("the guest ended the attachment")
        finally:
            self._ended = True
            async with self._more:
                self._more.notify_all()

    def _parse(self, data: bytes) -> list[Frame]:
        try:
            return self._parser.feed(data)
        except FrameError as error:
            raise GuestProtocolError(str(error)) from error

    async def _note(self, event: Event) -> None:
        amount = event.fields.get("bytes", 0)
        if event.type != "stdin_credit" or not isinstance(amount, int) or amount < 0:
            return
        async with self._more:
            self._credit = min(self._credit + amount, http.MAX_HEAD * 4)  # the window is 64 KiB whatever the guest says
            self._more.notify_all()

    async def send_stdin(self, data: bytes) -> None:
        """Send input as credit allows. Somebody must iterate meanwhile, for credit comes with the frames."""
        view = memoryview(data)
        while view:
            async with self._more:
                await self._more.wait_for(lambda: self._credit > 0 or self._ended)
                if self._ended:
                    raise GuestUnreachable("the attachment has ended")
                size = min(len(view), self._credit, STDIN_PIECE)
                self._credit -= size
            await self._send(encode(Kind.STDIN, bytes(view[:size])))
            view = view[size:]

    async def close_stdin(self) -> None:
        """No more input."""
        await self._send(encode_event({"type": "close_stdin"}))

    async def signal(self, name: str) -> None:
        """Signal the command's process group; SIGKILL reaches everything it started."""
        await self._send(encode_event({"type": "signal", "signal": name}))

    async def resize(self, rows: int, cols: int) -> None:
        """Resize the command's terminal."""
        await self._send(encode_event({"type": "resize", "rows": rows, "cols": cols}))

    async def _send(self, data: bytes) -> None:
        self._stream.writer.write(data)
        await _guarded(self._stream.writer.drain(), None)


class GuestClient:
    """Speaks to one agent."""

    def __init__(self, dial: http.Dial) -> None:
        self._dial = dial

    async def health(self, timeout: float = DEFAULT_TIMEOUT) -> dict[str, Any]:  # noqa: ASYNC109
        """The agent's version, boot and whether it is adopted."""
        return await self._call("GET", "/v1/health", timeout=timeout)

    async def adopt(self, request: AdoptRequest, timeout: float = DEFAULT_TIMEOUT) -> AdoptReply:  # noqa: ASYNC109
        """Reseed, set clock and names; safe to repeat."""
        body = asdict(request) | {"entropy": base64.b64encode(request.entropy).decode()}
        reply = await self._call("POST", "/v1/adopt", body, timeout=timeout)
        if reply.get("nonce") != request.nonce or reply.get("reseeded") is not True:
            raise GuestProtocolError("the agent answered another adoption")
        return AdoptReply(request.nonce, str(reply.get("random")), reseeded=True)

    async def processes(self) -> dict[str, Any]:
        """``{"epoch", "processes": […]}`` of this boot's commands."""
        return await self._call("GET", "/v1/processes")

    async def process(self, process: str) -> dict[str, Any]:
        """One command."""
        return await self._call("GET", _path(process))

    async def signal(self, process: str, name: str) -> None:
        """Signal a command."""
        await self._call("POST", _path(process, "signal"), {"signal": name})

    async def resize(self, process: str, rows: int, cols: int) -> None:
        """Resize a command's terminal."""
        await self._call("POST", _path(process, "resize"), {"rows": rows, "cols": cols})

    async def system_processes(self) -> list[dict[str, Any]]:
        """The machine's process table."""
        rows = (await self._call("GET", "/v1/system/processes")).get("processes")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise GuestProtocolError("a process table that is none")
        return rows

    async def shutdown(self, timeout: float = DEFAULT_TIMEOUT) -> None:  # noqa: ASYNC109
        """Ask the machine to power off."""
        await self._call("POST", "/v1/shutdown", timeout=timeout)

    @asynccontextmanager
    async def attach(self, process: str, *, spec: StartSpec | None = None, after: int = 0) -> AsyncIterator[Attachment]:
        """Follow a command; with ``spec`` start it when its id is new."""
        body = None if spec is None else {name: value for name, value in asdict(spec).items() if value is not None}
        async with self._upgraded("POST", f"{_path(process, 'attach')}?after={after}", body) as stream:
            yield Attachment(stream)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[Event]]:
        """Every command's start and exit: first ``snapshot`` events with ``processes``, then the changes."""
        async with self._upgraded("GET", "/v1/watch", None) as stream:
            yield _events(Attachment(stream))

    @asynccontextmanager
    async def _upgraded(self, method: str, path: str, body: Any) -> AsyncIterator[http.Stream]:
        stream = await _guarded(http.connect(self._dial), DEFAULT_TIMEOUT)
        try:
            await _guarded(_upgrade(stream, method, path, body), DEFAULT_TIMEOUT)
            yield stream
        finally:
            await stream.close()

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,  # noqa: ASYNC109
    ) -> dict[str, Any]:
        return await _guarded(_exchange(self._dial, method, path, body), timeout)


async def _exchange(dial: Callable[[], Awaitable[Any]], method: str, path: str, body: Any) -> dict[str, Any]:
    stream = await http.connect(dial)
    try:
        await http.send(stream, method, path, body)
        status, headers = await http.read_head(stream)
        answer = await http.read_body(stream, headers)
    finally:
        await stream.close()
    if status >= 300:
        raise http.refusal(status, answer)
    if not isinstance(answer, dict):
        raise GuestProtocolError("an answer that is no object")
    return answer


async def _upgrade(stream: http.Stream, method: str, path: str, body: Any) -> None:
    await http.send(stream, method, path, body, upgrade=PROTOCOL)
    status, headers = await http.read_head(stream)
    if status != 101:
        raise http.refusal(status, await http.read_body(stream, headers))
    if headers.get("upgrade") != PROTOCOL:
        raise GuestProtocolError("an upgrade to another protocol")


async def _events(attachment: Attachment) -> AsyncIterator[Event]:
    async for frame in attachment:
        if not isinstance(frame, Event):
            raise GuestProtocolError("output on a watch")
        yield frame


def _path(process: str, verb: str = "") -> str:
    return f"/v1/processes/{quote(process, safe='')}" + (f"/{verb}" if verb else "")
