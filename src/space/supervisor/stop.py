"""Ending the platform from outside: signal the supervisor, wait, and with ``purge`` remove all state."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from typing import Any

from space.base.settings import Settings
from space.supervisor import daemon
from space.supervisor.layout import Places

# The supervisor's own grace for each of five parts, the machines' deletion and a margin.
PATIENCE_S = 180.0


class StopError(Exception):
    """The platform did not stop."""


def down(settings: Settings, *, purge: bool) -> bool:
    """Stop the platform; True when it ran."""
    places = Places.of(settings)
    pid = daemon.running_pid(places.pid_file)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        while daemon.running_pid(places.pid_file) is not None:
            if time.monotonic() > deadline:
                raise StopError(f"the supervisor (pid {pid}) has not ended after {PATIENCE_S:.0f} s; see `space logs`")
            time.sleep(0.1)
    if purge:
        _purge(settings, places)
    return pid is not None


def _purge(settings: Settings, places: Places) -> None:
    from space.supervisor import template

    asyncio.run(template.close_pool(settings))
    for top in (places.state, places.run):
        if os.path.ismount(top / "pool"):
            raise StopError(f"{top / 'pool'} is still mounted; nothing was removed")
        shutil.rmtree(top, ignore_errors=False) if top.exists() else None


def status(settings: Settings) -> dict[str, Any]:
    """What the supervisor last wrote, checked against who really runs."""
    places = Places.of(settings)
    pid = daemon.running_pid(places.pid_file)
    if pid is None:
        return {"running": False, "parts": []}
    try:
        report: dict[str, Any] = json.loads(places.status_file.read_text())
    except (OSError, ValueError):
        report = {"parts": [], "since": None, "api_url": settings.public_api_url}
    return {"running": True, "pid": pid, **report}
