"""The spawner: a small single-threaded process that forks machines, so that the worker with its threads never has to.

`python -m space.vm.spawner FD`: requests come as one JSON datagram each, with descriptors beside it, over the seqpacket
socket FD; answers and exits of machines go back the same way. It is the subreaper of the machines it forks, reports how
each ended, and exits when its client does; machines then go on without it.

From: vm/spawner_client
To: vm/jail
"""

import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any

from space.vm import jail, linux

MESSAGE_MAX = 65536  # a plan is about 8 KiB: sixty library paths
FDS_MAX = 16
CMSG_CLOEXEC = 0x40000000  # Linux's MSG_CMSG_CLOEXEC, which the socket module does not name
STATUS_FD = 200  # above every number that the jail hands out


class Spawner:
    """Answers requests until the client closes the socket."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.selector = selectors.DefaultSelector()
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The terminal's Ctrl-C reaches the whole foreground group; the owner decides by closing the socket.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.starting: dict[int, dict[str, Any]] = {}  # status pipe -> request being started
        self.helpers: set[int] = set()

    def serve(self) -> None:
        self.selector.register(self.control, selectors.EVENT_READ, self._request)
        self.selector.register(self.wake_read, selectors.EVENT_READ, self._woken)
        with contextlib.suppress(EOFError):
            while True:
                for key, _ in self.selector.select():
                    key.data(key.fd)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self.control.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError from error

    def _woken(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(fd, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.helpers:
                self.helpers.discard(pid)
                continue
            code = os.waitstatus_to_exitcode(status)
            self._send({"event": "exit", "pid": pid, "code": max(code, 0), "signal": -min(code, 0)})

    def _request(self, _fd: int) -> None:
        data, fds, _flags, _address = socket.recv_fds(self.control, MESSAGE_MAX, FDS_MAX, CMSG_CLOEXEC)
        if not data:
            raise EOFError
        request = json.loads(data)
        try:
            if request["op"] == "spawn":
                self._spawn(request, fds)
            else:
                self._helper(request)
        except OSError as error:
            self._send({"id": request["id"], "error": str(error)})
        finally:
            for fd in fds:
                os.close(fd)

    def _watch(self, read: int, request: dict[str, Any]) -> None:
        self.starting[read] = {"id": request["id"], "text": b""}
        self.selector.register(read, selectors.EVENT_READ, self._status)

    def _status(self, fd: int) -> None:
        """A child says `pid N` and, if it fails, an error; the pipe's end means that it became its program."""
        chunk = os.read(fd, 4096)
        state = self.starting[fd]
        state["text"] += chunk
        if chunk:
            return
        self.selector.unregister(fd)
        os.close(fd)
        del self.starting[fd]
        answer: dict[str, Any] = {"id": state["id"]}
        for line in state["text"].decode(errors="replace").splitlines():
            word, _, rest = line.partition(" ")
            answer[word] = int(rest) if word == "pid" else rest
        self._send(answer)

    def _spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        plan = jail.Plan.parse(request["plan"])
        read, write = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            _first_child(plan, fds[:-1], fds[-1], write)
        os.close(write)
        self.helpers.add(child)
        self._watch(read, request)

    def _helper(self, request: dict[str, Any]) -> None:
        """Empty a machine's root, in a child because a process cannot leave the mount namespace it entered."""
        read, write = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            try:
                jail.empty_root(request["pid"])
            except Exception as error:  # noqa: BLE001 - the child's only way to say it
                os.write(write, f"error {error}\n".encode())
            os._exit(0)
        os.close(write)
        self.helpers.add(child)
        self._watch(read, request)


def _first_child(plan: jail.Plan, fds: list[int], log: int, status: int) -> None:
    """Enter the namespaces and fork the one process that lives in them; never returns."""
    status = fcntl.fcntl(status, fcntl.F_DUPFD_CLOEXEC, STATUS_FD)
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        jail.enter_groups(plan)
        pid = os.fork()
        if pid:
            os.write(status, f"pid {pid}\n".encode())
            os._exit(0)
        jail.run(plan, fds, log)
    except Exception as error:  # noqa: BLE001 - the child's only way to say it
        os.write(status, f"error {error}\n".encode())
    os._exit(127)


def main() -> None:
    linux.become_subreaper()
    Spawner(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
