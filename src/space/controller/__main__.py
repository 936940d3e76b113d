"""`python -m space.controller`: run one replica until SIGTERM."""

import asyncio
import signal

from space.base import logs, tasks
from space.base.settings import Settings
from space.controller.app import Controller
from space.store import Database


async def run(settings: Settings) -> int:
    """Serve until a signal, or until a loop dies: then another start is better than half a controller."""
    if settings.database_url is None:
        logs.get_logger().error("SPACE_DATABASE_URL is not set", action="start_failed")
        return 2
    stop, failed = asyncio.Event(), asyncio.Event()

    def fatal(_name: str, _error: BaseException) -> None:
        failed.set()
        stop.set()

    tasks.set_fatal(fatal)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    db = await Database.open(settings.database_url.get_secret_value())
    controller = Controller(settings, db)
    await controller.open()
    logs.get_logger().info("ready", action="ready", port=controller.port)
    await stop.wait()
    await controller.close()
    await db.close()
    return 1 if failed.is_set() else 0


def main() -> int:
    """Entry point."""
    settings = Settings.load()
    logs.setup("controller", json=settings.log_json, level=settings.log_level)
    return asyncio.run(run(settings))


if __name__ == "__main__":
    raise SystemExit(main())
