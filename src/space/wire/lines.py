"""Bounded JSON lines over asyncio streams: one object a line, never more than a mebibyte."""

import asyncio
import json
from typing import Any

# The largest honest message is an assignment with its environment (the API takes bodies up to 1 MiB).
MAX_LINE = 1024 * 1024


class LineError(Exception):
    """What came is no JSON object on one bounded line; the connection is of no more use."""


class Lines:
    """One connection's two directions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The reader must have been made with ``limit=MAX_LINE``."""
        self._reader = reader
        self.writer = writer
        self._sending = asyncio.Lock()

    async def receive(self, within: float | None = None) -> dict[str, Any] | None:
        """The next object, None at the end of the stream; TimeoutError after `within` seconds."""
        try:
            async with asyncio.timeout(within):
                line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise LineError("the stream ended in the middle of a line") from None
            return None
        except asyncio.LimitOverrunError:
            raise LineError(f"a line is longer than {MAX_LINE} bytes") from None
        return parse(line)

    async def send(self, message: dict[str, Any]) -> None:
        """Send one object; returns when the other side takes more."""
        data = encode(message)
        async with self._sending:
            self.writer.write(data)
            await self.writer.drain()

    def close(self) -> None:
        """Let go of the connection."""
        self.writer.close()


def encode(message: dict[str, Any]) -> bytes:
    """One line; LineError when it is too long for the other side."""
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    if len(data) > MAX_LINE:
        raise LineError(f"a message of {len(data)} bytes is longer than a line may be")
    return data


def parse(line: bytes) -> dict[str, Any]:
    """The object on a line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise LineError("not a JSON object")
    return value
