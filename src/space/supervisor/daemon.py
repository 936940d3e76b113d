"""Going to the background: double fork, one pid file under a lock, and finding the one that runs."""

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO


class AlreadyRunning(Exception):
    """Another supervisor holds the pid file."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        super().__init__(f"already running (pid {pid})")


def take_pid_file(path: Path) -> TextIO:
    """Lock and fill the pid file; the lock, not the number, says that someone runs. Keep the result open."""
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        running = running_pid(path)
        file.close()
        raise AlreadyRunning(running or 0) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    os.set_inheritable(file.fileno(), False)
    return file


def running_pid(path: Path) -> int | None:
    """Give the pid of the supervisor that holds the lock, if one does."""
    try:
        file = path.open()
    except FileNotFoundError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = file.read().strip()
            return int(text) if text.isdigit() else None
    return None


def daemonise(log: Path) -> bool:
    """Fork twice. True in the background process, False in the caller, which still has its terminal."""
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    sys.stdout.flush()
    sys.stderr.flush()
    null = os.open("/dev/null", os.O_RDWR)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)
    return True


def run_in_background(log: Path, work: Callable[[], int]) -> None:
    """Run ``work`` in a background process and end that process with its result; the caller goes on at once."""
    if daemonise(log):
        code = 1
        try:
            code = work()
        finally:
            sys.stderr.flush()
            os._exit(code)
