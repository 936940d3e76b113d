"""``space up``: check the host, bring the platform up in the fore- or background, leave a context behind."""

import asyncio
import json as json_module
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable

from rich.console import Console

from space.base import logs
from space.base.settings import Settings
from space.base.tasks import cancel, spawn
from space.supervisor import checks, daemon
from space.supervisor.layout import LayoutError, Places
from space.supervisor.platform import Platform, StartError

err = Console(stderr=True, highlight=False, soft_wrap=True)
SaveContext = Callable[[str, str, str, str], str]


def up(settings: Settings, *, detach: bool, json: bool, save: SaveContext) -> int:
    """Start everything; in the foreground until a signal, in the background until it is ready."""
    failed = [c for c in checks.all_checks(settings.state_dir) if c.required and not c.ok]
    for check in failed:
        err.print(f"space: {check.name}: {check.detail}\n  try: {check.fix}", markup=False)
    if failed:
        return 1
    places = Places.of(settings)
    places.run.mkdir(parents=True, exist_ok=True)
    (places.log).mkdir(parents=True, exist_ok=True)
    running = daemon.running_pid(places.pid_file)
    if running is not None:
        return _already(places, running, json=json)
    if not detach:
        return _serve(settings, echo=True, ready=_tell_ready(json, save))
    return _background(settings, places, json=json, save=save)


def _already(places: Places, pid: int, *, json: bool) -> int:
    if json:
        sys.stdout.write(places.status_file.read_text() + "\n")
    else:
        err.print(f"space: already running (pid {pid}); `space status`", markup=False)
    return 0


def _background(settings: Settings, places: Places, *, json: bool, save: SaveContext) -> int:
    reader, writer = os.pipe()

    async def ready(platform: Platform) -> None:
        os.write(writer, json_module.dumps(_summary(platform, save)).encode())
        os.close(writer)

    def work() -> int:
        os.close(reader)
        return _serve(settings, echo=False, ready=ready)

    log = places.log / "supervisor.log"
    offset = log.stat().st_size if log.exists() else 0
    daemon.run_in_background(log, work)
    os.close(writer)
    began = time.monotonic()
    with os.fdopen(reader, "rb") as pipe:
        if err.is_terminal:
            with err.status("starting (the first time also builds the template, one to two minutes)"):
                told = pipe.read()
        else:
            told = pipe.read()
    if not told:
        tail = log.read_bytes()[offset:].decode(errors="replace").splitlines()[-12:]
        err.print("space: did not come up; the last lines of its log:\n" + "\n".join(tail), markup=False)
        return 1
    _print_summary(json_module.loads(told), time.monotonic() - began, json=json)
    return 0


def _summary(platform: Platform, save: SaveContext) -> dict[str, object]:
    settings = platform.settings
    place = save(
        settings.public_api_url, settings.public_data_plane_url, platform.operator_key, settings.template
    )  # fmt: skip
    return {**platform.report(), "context": place}


def _tell_ready(json: bool, save: SaveContext) -> Callable[[Platform], Awaitable[None]]:
    began = time.monotonic()

    async def ready(platform: Platform) -> None:
        _print_summary(_summary(platform, save), time.monotonic() - began, json=json)

    return ready


def _print_summary(summary: dict[str, object], took: float, *, json: bool) -> None:
    if json:
        sys.stdout.write(json_module.dumps(summary) + "\n")
        sys.stdout.flush()
        return
    err.print(f"space: ready after {took:.0f} s", markup=False)
    err.print(f"  API        {summary['api_url']}\n  data plane {summary['data_plane_url']}", markup=False)
    err.print(f"  context    {summary['context']}", markup=False)
    err.print(f"  isolation  {summary['isolation']}", markup=False)
    if summary["isolation"] == "emulated":
        err.print(
            "  Software emulation: no isolation promise by QEMU, and several times slower. See `space doctor kvm`.",
            markup=False,
        )
    err.print("  try        space run -- python3 -c 'print(1)'", markup=False)


def _serve(settings: Settings, *, echo: bool, ready: Callable[[Platform], Awaitable[None]]) -> int:
    logs.setup("supervisor", json=settings.log_json, level=settings.log_level)
    try:
        pid_file = daemon.take_pid_file(Places.of(settings).pid_file)
    except daemon.AlreadyRunning as error:
        logs.get_logger().error(str(error))
        return 1
    with pid_file:
        return asyncio.run(_live(settings, echo=echo, ready=ready))


async def _live(settings: Settings, *, echo: bool, ready: Callable[[Platform], Awaitable[None]]) -> int:
    platform = Platform(settings, echo=echo)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    starting = spawn("start", platform.start())
    stopped = spawn("stop signal", stop.wait())
    code = 0
    watch = None
    try:
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await ready(platform)
            watch = spawn("watch-postgres", platform.watch_postgres())
            await stopped
    except (StartError, LayoutError) as error:
        logs.get_logger().error(f"{error}", action="start_failed", hint=getattr(error, "hint", ""))
        code = 1
    except Exception:  # noqa: BLE001 - whatever a part's start raises, what did start must be stopped
        logs.get_logger().exception("could not start", action="start_failed")
        code = 1
    finally:
        await cancel(*(task for task in (starting, stopped, watch) if task is not None))
        await platform.stop()
    return code
