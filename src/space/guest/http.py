"""One bounded HTTP/1.1 exchange over a fresh guest stream, and its upgrade to frames."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from space.guest.errors import GuestError, GuestProtocolError, GuestUnreachable

Dial = Callable[[], Awaitable[socket.socket]]

MAX_HEAD = 16 * 1024
MAX_BODY = 4 * 1024 * 1024  # a full process table is the largest answer, below 3 MiB
READ_LIMIT = 256 * 1024  # what asyncio holds of a stream before the kernel, and so the guest, has to wait


@dataclass
class Stream:
    """A connected guest stream."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def close(self) -> None:
        """Let the connection go, whatever state it is in."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError):
            return


async def connect(dial: Dial) -> Stream:
    """Dial and wrap the socket."""
    try:
        sock = await dial()
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock, limit=READ_LIMIT)
    except OSError as error:
        raise GuestUnreachable(f"cannot reach the guest: {error}") from error
    return Stream(reader, writer)


async def send(stream: Stream, method: str, path: str, body: Any = None, *, upgrade: str | None = None) -> None:
    """Write one request."""
    data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: guest", f"Content-Length: {len(data)}"]
    if data:
        head.append("Content-Type: application/json")
    head += [f"Upgrade: {upgrade}", "Connection: Upgrade"] if upgrade else ["Connection: close"]
    stream.writer.write("\r\n".join(head).encode("ascii") + b"\r\n\r\n" + data)
    await stream.writer.drain()


async def read_head(stream: Stream) -> tuple[int, dict[str, str]]:
    """Read a status and the headers, names in lower case."""
    try:
        raw = await stream.reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise GuestProtocolError("an endless header") from error
    if len(raw) > MAX_HEAD:
        raise GuestProtocolError("a header longer than 16 KiB")
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not (parts[1].isascii() and parts[1].isdigit()):
        raise GuestProtocolError("a status line that is none")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(parts[1]), headers


async def read_body(stream: Stream, headers: dict[str, str]) -> Any:
    """Read a JSON body of known length, or one in chunks."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        data = await _read_chunks(stream)
    else:
        data = await stream.reader.readexactly(_size(headers.get("content-length", "0"), 10))
    try:
        return json.loads(data) if data else {}
    except (ValueError, RecursionError) as error:
        raise GuestProtocolError("a body that is not JSON") from error


def _size(text: str, base: int) -> int:
    try:
        size = int(text, base)
    except ValueError as error:
        raise GuestProtocolError("a length that is none") from error
    if not 0 <= size <= MAX_BODY:
        raise GuestProtocolError("a body longer than 4 MiB")
    return size


async def _read_chunks(stream: Stream) -> bytes:
    data = bytearray()
    while True:
        try:
            line = await stream.reader.readuntil(b"\r\n")
        except asyncio.LimitOverrunError as error:
            raise GuestProtocolError("an endless chunk header") from error
        size = _size(line.split(b";")[0].strip().decode("latin-1"), 16)
        if len(data) + size > MAX_BODY:
            raise GuestProtocolError("a body longer than 4 MiB")
        data += (await stream.reader.readexactly(size + 2))[:-2]
        if size == 0:
            return bytes(data)


def refusal(status: int, body: Any) -> GuestError:
    """The agent's refusal as an error."""
    fields = body if isinstance(body, dict) else {}
    path = fields.get("path")
    return GuestError(
        str(fields.get("code", "guest_error"))[:64],
        str(fields.get("message", f"the agent answered {status}"))[:1024],
        status=status,
        path=str(path)[:4096] if path is not None else None,
    )
