"""One part as a child process: started as its own uid, its log bounded, started again with back-off when it dies."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from space.base.logs import get_logger
from space.base.tasks import spawn
from space.supervisor.launch import code_paths
from space.supervisor.users import Account

# First pause and longest pause before a part that died is started again; a part that ran for a minute starts afresh.
BACKOFF_FIRST_S, BACKOFF_MOST_S, STEADY_S = 0.5, 30.0, 60.0
# A log is kept twice at most (this one and the one before).
LOG_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class PartSpec:
    """How to start a part."""

    name: str
    module: str
    env: Mapping[str, str]
    account: Account | None  # None: root
    groups: tuple[int, ...] = ()


def command_of(spec: PartSpec) -> list[str]:
    """Build the command line that starts the part, through the launcher unless it stays root."""
    program = [sys.executable, "-m", spec.module]
    return program if spec.account is None else as_account(spec.account, program, spec.groups)


def as_account(account: Account, program: list[str], groups: tuple[int, ...] = ()) -> list[str]:
    """Wrap ``program`` so that it runs as ``account`` and sees the code's files."""
    shown = [word for path in code_paths() for word in ("--show", str(path))]
    launch = [sys.executable, "-m", "space.supervisor.launch", "--uid", str(account.uid), "--gid", str(account.gid)]
    joined = [word for group in groups for word in ("--group", str(group))]
    return [*launch, *joined, *shown, "--", *program]


class LogFile:
    """Appends a part's output and turns the file over at its bound, so that no part can fill the disk."""

    def __init__(self, path: Path, *, echo: bool) -> None:
        self._path = path
        self._echo = echo
        self._file = path.open("ab")
        path.chmod(0o640)

    def write(self, data: bytes) -> None:
        """Append; in the foreground also show."""
        if self._file.tell() + len(data) > LOG_BYTES:
            self._file.close()
            self._path.replace(self._path.with_suffix(".log.1"))
            self._file = self._path.open("ab")
            self._path.chmod(0o640)
        self._file.write(data)
        self._file.flush()
        if self._echo:
            sys.stderr.buffer.write(data)
            sys.stderr.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass
class Part:
    """A started part and what is known of it."""

    spec: PartSpec
    log: LogFile
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    last_exit: int | None = None
    stopping: bool = False
    _watch: asyncio.Task[None] | None = field(default=None, repr=False)

    async def start(self) -> None:
        """Start it and watch it from now on."""
        await self._spawn()
        self._watch = spawn(f"watch-{self.spec.name}", self._keep_alive())

    async def _spawn(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *command_of(self.spec),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(self.spec.env),
            cwd="/",
            start_new_session=True,
        )

    async def _drain(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while data := await process.stdout.read(65536):
            self.log.write(data)

    async def _keep_alive(self) -> None:
        pause = BACKOFF_FIRST_S
        while True:
            began = time.monotonic()
            process = self.process
            assert process is not None
            drain = spawn(f"log-{self.spec.name}", self._drain(process))
            self.last_exit = await process.wait()
            # A machine that outlives the worker may hold the pipe; what was written before is read within a second.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(drain, 1.0)
            if self.stopping:
                return
            pause = BACKOFF_FIRST_S if time.monotonic() - began > STEADY_S else pause
            get_logger().error(
                "part_died", action="part_died", name=self.spec.name, exit_code=self.last_exit, restart_in_s=pause
            )
            await asyncio.sleep(pause)
            pause = min(pause * 2, BACKOFF_MOST_S)
            if self.stopping:
                return
            self.restarts += 1
            await self._spawn()

    async def stop(self, grace: float) -> None:
        """SIGTERM, then SIGKILL after ``grace`` seconds."""
        self.stopping = True
        process = self.process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), grace)
            except TimeoutError:
                get_logger().error("part_killed", action="part_killed", name=self.spec.name, after_s=grace)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                await process.wait()
        if self._watch is not None:
            await asyncio.wait([self._watch], timeout=BACKOFF_MOST_S)
        self.log.close()

    @property
    def alive(self) -> bool:
        """Whether its process runs now."""
        return self.process is not None and self.process.returncode is None
