"""Follow one remote command: its output here, our input and signals there, its exit code as ours."""

import base64
import contextlib
import json
import os
import queue
import shutil
import signal
import stat
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from typing import Any

import httpx

from space.cli.api_client import Api, Json, raise_problem
from space.cli.output import err
from space.cli.problems import PLATFORM_EXIT, CliError

# A read of stdin and a body of one POST: what the data plane takes at once.
STDIN_CHUNK = 32 * 1024
# A dropped connection is taken up again this often in a row without a single event in between.
REATTACH_TRIES = 5


def wants_stdin() -> bool:
    """A pipe or a file on stdin is meant for the command; a terminal or /dev/null is not."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def terminal_size() -> dict[str, int]:
    """Rows and columns of this terminal."""
    size = shutil.get_terminal_size()
    return {"rows": size.lines, "cols": size.columns}


class Session:
    """One attachment to a command, from its start to its end."""

    def __init__(self, api: Api, sandbox: str, command: str, attachment: Json, *, follow_only: bool = False) -> None:
        # GET never starts a command; POST does.
        self._method = "GET" if follow_only else "POST"
        self._api = api
        self._sandbox = sandbox
        self._command = command
        self._url = str(attachment["url"])
        self._token = str(attachment["token"])
        self._cursor: str | None = None
        self._exit: int | None = None
        self._interrupts = 0
        self._outbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._started = threading.Event()  # what is sent to a command before it runs would be refused

    # --- what goes there

    def _send_loop(self) -> None:
        self._started.wait()
        while True:
            kind, value = self._outbox.get()
            try:
                self._send(kind, value)
            except CliError as error:
                # The command may have ended in between: then there is nobody to tell.
                if self._exit is None and error.code not in ("command_not_found", "state_conflict"):
                    err.print(f"space: {kind} not delivered: {error.message}", markup=False)

    def _send(self, kind: str, value: Any) -> None:
        base = self._url.removesuffix("/attach")
        if kind == "signal":
            self._api.call("POST", f"/v1/sandboxes/{self._sandbox}/commands/{self._command}/signal", {"signal": value})
        elif kind == "resize":
            self._api.data("POST", f"{base}/resize", self._token, json=value)
        elif kind == "stdin":
            self._api.data("POST", f"{base}/stdin", self._token, content=value)
        else:
            self._api.data("POST", f"{base}/stdin", self._token, params={"close": "true"})

    def _read_stdin(self) -> None:
        while True:
            data = os.read(0, STDIN_CHUNK)
            if not data:
                self._outbox.put(("close_stdin", None))
                return
            self._outbox.put(("stdin", data))

    def _on_interrupt(self, _number: int, _frame: object) -> None:
        self._interrupts += 1
        self._outbox.put(("signal", "SIGINT" if self._interrupts == 1 else "SIGKILL"))

    # --- what comes here

    def _events(self) -> Iterator[Json]:
        method, tries = self._method, 0
        while True:
            try:
                with self._api.open_stream(method, self._url, self._token, self._cursor) as answer:
                    raise_problem(answer)
                    for line in answer.iter_lines():
                        if line:
                            tries = 0
                            yield json.loads(line)
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
            else:
                problem = "the stream ended"
            if self._exit is not None:
                return
            tries += 1
            if tries > REATTACH_TRIES:
                raise CliError(
                    f"lost the connection to {self._command}: {problem}",
                    f"it may still run: `space command get {self._sandbox} {self._command}`",
                    code="connection_lost",
                    exit_code=PLATFORM_EXIT,
                )
            time.sleep(min(0.2 * 2**tries, 3.0))
            self._renew()
            method = "GET" if self._cursor else self._method

    def _renew(self) -> None:
        with contextlib.suppress(CliError):
            path = f"/v1/sandboxes/{self._sandbox}/commands/{self._command}/attachments"
            fresh = self._api.call("POST", path)
            fresh = fresh.get("attachment", fresh)
            self._url, self._token = str(fresh["url"]), str(fresh["token"])

    def _take(self, event: Json) -> bool:
        """Act on one event; True when nothing more can come."""
        self._cursor = event.get("cursor") or self._cursor
        kind = event.get("type")
        if kind != "start_failed":
            self._started.set()
        if kind in ("stdout", "stderr"):
            stream = sys.stdout.buffer if kind == "stdout" else sys.stderr.buffer
            stream.write(base64.b64decode(event["data"]))
            stream.flush()
        elif kind == "output_dropped":
            err.print(f"space: {event.get('bytes')} bytes of output were dropped", markup=False)
        elif kind == "network_denied":
            err.print(f"space: network denied: {event.get('host')}:{event.get('port')}", markup=False)
        elif kind == "start_failed":
            what = str(event.get("message") or event.get("code"))
            path = str(event.get("path") or "")
            detail = what if not path or path in what else f"{what}: {path}"
            raise CliError(detail, code=str(event.get("code")), exit_code=_start_failure_exit(event.get("code")))
        elif kind == "process_exited":
            self._exit = exit_code_of(event)
        return kind == "stream_closed"

    def follow(self, *, stdin: bool, terminal: bool) -> int:
        """Run to the end and give the exit code."""
        threading.Thread(target=self._send_loop, name="send", daemon=True).start()
        if stdin:
            threading.Thread(target=self._read_stdin, name="stdin", daemon=True).start()
        with self._signals(terminal), _raw(terminal):
            for event in self._events():
                if self._take(event):
                    break
        if self._exit is None:
            raise CliError("the command's end was not seen", exit_code=PLATFORM_EXIT)
        return self._exit

    @contextlib.contextmanager
    def _signals(self, terminal: bool) -> Iterator[None]:
        handlers: dict[int, Any] = {signal.SIGINT: self._on_interrupt}
        if terminal:  # where Ctrl-C is a byte for the remote terminal
            handlers = {signal.SIGWINCH: lambda *_: self._outbox.put(("resize", terminal_size()))}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def exit_code_of(event: Json) -> int:
    """Give the remote exit code, or 128 plus the signal's number as a shell does."""
    if event.get("exit_code") is not None:
        return int(event["exit_code"])
    name = str(event.get("signal") or "SIGKILL")
    reason = event.get("reason")
    err.print(f"space: ended by {name}" + (f" ({reason})" if reason else ""), markup=False)
    number = getattr(signal, name, signal.SIGKILL)
    return 128 + int(number)


def _start_failure_exit(code: object) -> int:
    # As every shell: 127 not found, 126 found but not to be run.
    return {"executable_not_found": 127, "permission_denied": 126}.get(str(code), PLATFORM_EXIT)


@contextlib.contextmanager
def _raw(terminal: bool) -> Iterator[None]:
    if not terminal:
        yield
        return
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
