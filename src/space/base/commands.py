"""Run a program and, when it fails, raise an error that shows the command ready to paste and what it last said."""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A build tool's last screenful; more belongs in a log file.
TAIL_BYTES = 4096
# Nobody here reads more than a listing; a program that runs wild must not fill our memory.
OUTPUT_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True)
class Completed:
    """What a program wrote before it ended with exit code 0, or with another that was allowed."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode(errors="replace")


class CommandError(Exception):
    """A program could not be started, failed or took too long."""

    def __init__(self, argv: Sequence[str], problem: str, stderr: bytes = b"", code: int | None = None) -> None:
        self.argv = list(argv)
        self.problem = problem
        self.code = code
        self.stderr = stderr[-TAIL_BYTES:].decode(errors="replace").strip()
        said = f"\n{self.stderr}" if self.stderr else ""
        super().__init__(f"{problem}: {shlex.join(self.argv)}{said}")


async def run(
    argv: Sequence[str | Path],
    *,
    input: bytes | None = None,  # noqa: A002 - the name subprocess gave it
    timeout: float = 60.0,  # noqa: ASYNC109 - the deadline must also kill the program, which wait_for cannot
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> Completed:
    """Run ``argv`` to its end; at the deadline its whole process group is killed."""
    words = [str(word) for word in argv]
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE if input is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise CommandError(words, f"could not start ({error.strerror})") from error
    try:
        async with asyncio.timeout(timeout):
            stdout, stderr = await _talk(process, input)
            code = await process.wait()
    except TimeoutError:
        raise CommandError(words, f"not finished after {timeout:g} s") from None
    except ValueError as error:
        raise CommandError(words, str(error)) from None
    finally:
        await _reap(process)
    if check and code != 0:
        raise CommandError(words, f"failed with exit code {code}", stderr, code)
    return Completed(code, stdout, stderr)


async def _talk(process: asyncio.subprocess.Process, data: bytes | None) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr, _ = await asyncio.gather(
        _read(process.stdout), _read(process.stderr, keep_tail=True), _feed(process.stdin, data)
    )
    return stdout, stderr


async def _read(stream: asyncio.StreamReader, *, keep_tail: bool = False) -> bytes:
    kept = bytearray()
    while chunk := await stream.read(65536):
        kept += chunk
        if len(kept) > OUTPUT_LIMIT:
            if not keep_tail:
                raise ValueError(f"wrote more than {OUTPUT_LIMIT} bytes")
            del kept[:-TAIL_BYTES]
    return bytes(kept)


async def _feed(stream: asyncio.StreamWriter | None, data: bytes | None) -> None:
    if stream is None:
        return
    # A program may end without reading what it was given; its exit code tells whether that was wrong.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data or b"")
        await stream.drain()
    stream.close()


async def _reap(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # wait() returns only when the pipes are at their end; a reader that gave up never gets there.
        process._transport.close()  # type: ignore[attr-defined]
        await process.wait()
