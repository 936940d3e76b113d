"""The ASGI applications: the API, and the listener for health and metrics."""

from __future__ import annotations

import re
import time
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from space.api import commands, fleet, sandboxes
from space.api.context import Platform
from space.api.problems import install, problem
from space.base.logs import bind, get_logger
from space.domain.errors import InternalError, PlatformUnavailable, RequestTooLarge, SpaceError
from space.domain.ids import new

# Arguments of a command may be 128 KiB each; files go through the data plane. 1 MiB holds any sensible request.
MAX_BODY = 1 << 20
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Metrics:
    """What is counted; one registry an application, so that tests do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("space_api_requests", "Requests.", ["method", "status"], registry=self.registry)
        self.seconds = Histogram("space_api_request_seconds", "Time to the answer's end.", registry=self.registry)
        self.sandboxes = Gauge("space_sandboxes", "Sandboxes by state.", ["state"], registry=self.registry)


class Edge:
    """Outermost: request id, body limit, one log line, the last resort for a bug."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else new("req")
        scope.setdefault("state", {})["request_id"] = request_id
        with bind(request=request_id):
            await self._serve(scope, receive, send, headers, request_id)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes], request_id: str
    ) -> None:
        began, status, taken = time.monotonic(), 0, 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_BODY:
                raise RequestTooLarge(f"the body is larger than {MAX_BODY} bytes")
            return message

        async def stamped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                kept = [(name, value) for name, value in message["headers"] if name.lower() != b"x-request-id"]
                message["headers"] = [*kept, (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length) > MAX_BODY:
                raise RequestTooLarge(f"the body is larger than {MAX_BODY} bytes")  # noqa: TRY301
            await self._app(scope, counted, stamped)
        except SpaceError as error:
            await problem(error, request_id)(scope, receive, stamped)
        except Exception as error:  # noqa: BLE001 (whatever it is, the caller gets a problem and the log the traceback)
            get_logger().error("bug", action="request_failed", exc_info=error)
            if status == 0:
                await problem(InternalError(), request_id)(scope, receive, stamped)
        self._metrics.requests.labels(scope["method"], str(status)).inc()
        self._metrics.seconds.observe(time.monotonic() - began)
        get_logger().info(
            "request", action="request", method=scope["method"], path=scope["path"], status=status,
            ms=round((time.monotonic() - began) * 1000, 1),
        )  # fmt: skip


def make_app(platform: Platform, metrics: Metrics | None = None) -> FastAPI:
    """The API over these parts."""
    app = FastAPI(title="SPACE", version="1", openapi_url="/openapi.json", docs_url="/docs", redoc_url=None)
    app.state.platform = platform
    app.state.metrics = metrics or Metrics()
    for router in (sandboxes.router, commands.router, commands.internal, fleet.router):
        app.include_router(router)
    install(app)
    app.add_middleware(Edge, metrics=app.state.metrics)
    return app


def make_ops_app(platform: Platform, metrics: Metrics) -> FastAPI:
    """Health and metrics, without authentication, on a listener of their own."""
    app = FastAPI(openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Any:
        try:
            await platform.db.fetchval("ping")
        except PlatformUnavailable as error:
            return JSONResponse({"status": "unready", "detail": error.detail}, 503)
        return {"status": "ready"}

    @app.get("/metrics")
    async def read_metrics() -> Response:
        metrics.sandboxes.clear()
        for row in await platform.db.fetch("count_states"):
            metrics.sandboxes.labels(row["state"]).set(row["count"])
        return Response(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4")

    return app
