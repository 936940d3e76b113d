"""`python -m space.api`: the API and its ops listener in one process; SIGTERM ends both in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn

from space.api.app import Metrics, make_app, make_ops_app
from space.api.context import Platform
from space.base import logs, tasks
from space.base.settings import Settings
from space.store import Database
from space.store.embedded import dsn_of
from space.store.migrations import migrate
from space.wire.tokens import load_private_key


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: two run here and one handler stops both."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: see `main`."""
        yield


def _server(app: object, host: str, port: int) -> Server:
    return Server(
        uvicorn.Config(app, host=host, port=port, log_config=None, access_log=False, timeout_graceful_shutdown=5)  # type: ignore[arg-type]
    )


async def main(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    dsn = dsn_of(settings)
    await migrate(dsn)
    key = load_private_key((settings.state_dir / "keys" / "data-plane.key").read_bytes())
    db = await Database.open(dsn)
    metrics = Metrics()
    async with httpx.AsyncClient(trust_env=False) as http:
        platform = Platform(db, settings, key, http)
        await db.listen({"space_operation": platform.waiters.wake})
        servers = [
            _server(make_app(platform, metrics), settings.api_host, settings.api_port),
            _server(make_ops_app(platform, metrics), settings.api_host, settings.ops_port),
        ]

        def stop(*_: object) -> None:
            for server in servers:
                server.should_exit = True

        tasks.set_fatal(stop)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        running = [tasks.spawn(f"server {server.config.port}", server.serve()) for server in servers]
        # uvicorn tells of its start only by this attribute.
        while not all(server.started for server in servers) and not any(task.done() for task in running):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        logs.get_logger().info("ready", action="ready", port=settings.api_port)
        await asyncio.wait(running)
    await db.close()


if __name__ == "__main__":
    loaded = Settings.load()
    logs.setup("api", json=loaded.log_json, level=loaded.log_level)
    asyncio.run(main(loaded))
