"""The end of a machine's serial console: the last 64 KiB, read at a bounded rate.

While nothing is read QEMU holds the guest's serial port back, so a guest that floods slows itself down and not the
host. After a worker's restart the ring starts empty: what was printed before is gone with the old process.
"""

import asyncio
import contextlib
from pathlib import Path

from space.base import tasks
from space.vm.base import MachineError

RING = 65536
CHUNK = 4096
# A boot prints about 30 KiB, so this does not slow one; a flood costs the host under a thousandth of a core.
RATE = 262144  # bytes a second
CONNECT_S = 10.0


class Console:
    """A connected console. `seen` counts all bytes ever read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._ring = bytearray()
        self.seen = 0
        self._changed = asyncio.Event()
        self._task = tasks.spawn("console", self._run())

    @classmethod
    async def connect(cls, path: Path) -> "Console":
        try:
            async with asyncio.timeout(CONNECT_S):
                return cls(*await asyncio.open_unix_connection(path, limit=CHUNK))
        except (OSError, TimeoutError) as error:
            raise MachineError("monitor", f"no console: {error!r}") from error

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        start, budget = loop.time(), 0
        with contextlib.suppress(OSError):
            while chunk := await self._reader.read(CHUNK):
                self._add(chunk)
                budget += len(chunk)
                ahead = budget / RATE - (loop.time() - start)
                if ahead > 0:
                    await asyncio.sleep(ahead)
                elif ahead < -1:  # quiet for a second: do not save up a burst longer than that
                    start, budget = loop.time(), 0
        self._changed.set()

    def _add(self, chunk: bytes) -> None:
        self._ring += chunk
        del self._ring[:-RING]
        self.seen += len(chunk)
        self._changed.set()

    def tail(self, limit: int = RING) -> bytes:
        return bytes(self._ring[-limit:]) if limit > 0 else b""

    async def find(self, marker: bytes, timeout_s: float) -> bool:
        """Wait until the kept output contains `marker`; False if the console ends or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while marker not in self._ring:
                    if self._task.done():
                        return False
                    self._changed.clear()
                    await self._changed.wait()
                return True
        return False

    async def drained(self, timeout_s: float) -> None:
        """Wait until the other end is closed and all it sent has been read."""
        await asyncio.wait({self._task}, timeout=timeout_s)

    async def close(self) -> None:
        await tasks.cancel(self._task)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
