"""A process known by more than its number: pid and start time, then held by a pidfd."""

import asyncio
import os
import signal
from pathlib import Path

from space.vm.base import MachineError


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which the process started, None if there is none (a zombie counts as none)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name may hold spaces and parentheses
    return None if fields[0] in ("Z", "X") else int(fields[19])


class Process:
    """A running process that cannot be mistaken for a later one of the same number."""

    def __init__(self, pid: int, fd: int, started: int) -> None:
        self.pid, self.fd, self.started = pid, fd, started
        self._ended = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(fd, self._readable)

    @classmethod
    def hold(cls, pid: int, started: int | None = None) -> "Process":
        """Raises MachineError if it is gone or, with `started` given, is another process by now."""
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            raise MachineError("adopt", f"process {pid} is gone") from error
        now = start_time(pid)
        if now is None or started not in (None, now):
            os.close(fd)
            raise MachineError(
                "adopt", f"process {pid} is gone" if now is None else f"process {pid} is another one now"
            )
        return cls(pid, fd, now)

    def _readable(self) -> None:
        asyncio.get_running_loop().remove_reader(self.fd)
        if not self._ended.done():
            self._ended.set_result(None)

    @property
    def ended(self) -> bool:
        return self._ended.done()

    async def wait(self) -> None:
        await asyncio.shield(self._ended)

    def kill(self) -> None:
        if not self._ended.done():
            try:
                signal.pidfd_send_signal(self.fd, signal.SIGKILL)
            except ProcessLookupError:
                return  # it ended just now; the pidfd says so in the next turn of the loop

    def close(self) -> None:
        if self.fd >= 0:
            asyncio.get_running_loop().remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1
            self._ended.cancel()
