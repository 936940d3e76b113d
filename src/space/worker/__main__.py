"""`python -m space.worker`: run this node's worker, as root, until SIGTERM."""

import asyncio
import os
import signal

from space.base import logs, tasks
from space.base.settings import Settings
from space.worker.app import Worker


async def run(settings: Settings) -> int:
    """Serve until a signal, or until an owned task dies: a new start reclaims, half a worker does not."""
    stop, failed = asyncio.Event(), asyncio.Event()

    def fatal(_name: str, _error: BaseException) -> None:
        failed.set()
        stop.set()

    tasks.set_fatal(fatal)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    worker = Worker(settings)
    opening = tasks.spawn("worker-open", worker.open())
    stopping = tasks.spawn("worker-stop", stop.wait())
    await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if opening.done() and not opening.exception():
        logs.get_logger().info("ready", action="ready")
        await stop.wait()
    await tasks.cancel(opening, stopping)
    await worker.close()
    return 1 if failed.is_set() else 0


def main() -> int:
    """Entry point."""
    settings = Settings.load()
    logs.setup("worker", json=settings.log_json, level=settings.log_level)
    if os.geteuid() != 0:
        logs.get_logger().error("the worker must be root: it makes namespaces, taps and jails", action="start_failed")
        return 2
    return asyncio.run(run(settings))


if __name__ == "__main__":
    raise SystemExit(main())
