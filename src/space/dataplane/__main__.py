"""`python -m space.dataplane`: the data plane of this node, unprivileged.

Order of stopping on SIGTERM: the listener closes, streams end with `stream_lost` (`data_plane_stopping`), watches and
the worker's connections end. Commands in sandboxes go on.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from space.base.logs import get_logger, setup
from space.base.settings import Settings
from space.base.tasks import set_fatal
from space.dataplane.api_link import ApiLink
from space.dataplane.app import App
from space.dataplane.attach import Attacher
from space.dataplane.guests import Guests
from space.dataplane.tokens import Verifier
from space.dataplane.watcher import Watcher
from space.dataplane.worker_link import WorkerLink
from space.wire.tokens import load_public_key

GRACE_S = 5  # streams end at once when told; the rest are short calls
MAX_CONNECTIONS = 2000  # a stream holds a task, a socket pair and 64 KiB; beyond it the answer is 503


class Server(uvicorn.Server):
    """A server that tells its streams to end before it waits for them."""

    def __init__(self, config: uvicorn.Config, attacher: Attacher) -> None:
        """`attacher` owns the streams."""
        super().__init__(config)
        self._attacher = attacher

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End by SIGTERM and SIGINT in our own order; the server's way would raise them again before we are done."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        if self.started:
            get_logger().info("ready", action="ready", host=self.config.host, port=self.config.port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then the connections."""
        self._attacher.stopping.set()
        await super().shutdown(sockets)


async def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT and give 0; give 1 when a side task died."""
    key = load_public_key((settings.state_dir / "keys" / "data-plane.pub").read_bytes())
    link = WorkerLink(settings.run_dir / "worker" / "worker.sock")
    guests, watcher = Guests(link), Watcher(link)
    attacher = Attacher(guests, ApiLink(settings.public_api_url), watcher)
    config = uvicorn.Config(
        App(Verifier(key), guests, attacher, watcher),
        host=settings.data_plane_host,
        port=settings.data_plane_port,
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = Server(config, attacher)

    died: list[str] = []

    def fatal(name: str, _error: BaseException) -> None:
        died.append(name)
        server.should_exit = True

    set_fatal(fatal)
    watcher.start()
    try:
        await server.serve()
    finally:
        await watcher.stop()
        link.close()
    return 1 if died or not server.started else 0


def main() -> int:
    """Read the settings and serve."""
    settings = Settings.load()
    setup("dataplane", json=settings.log_json, level=settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings))


if __name__ == "__main__":
    sys.exit(main())
