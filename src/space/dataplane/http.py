"""The little of HTTP that the data plane needs over ASGI: requests, JSON, problems.

A plain ASGI application keeps this process small: there is one on every node, beside the machines.
"""

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from space.dataplane.problems import document_of, status_of
from space.domain.errors import InvalidRequest, RequestTooLarge, SpaceError, Unauthenticated

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_JSON_BODY = 64 * 1024  # a signal or a window size; nothing here is larger


class ClientGoneError(Exception):
    """The client hung up while its request was being read."""


class Request:
    """One request: its address, headers and body, read on demand."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        """Take the request's scope; nothing of the body is read yet."""
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.request_id = self._request_id()
        self._receive = receive
        self._body_done = False

    def _request_id(self) -> str:
        given = self.headers.get(b"x-request-id", b"").decode("latin-1")
        if 0 < len(given) <= 128 and given.isascii() and all(c.isalnum() or c in "-_.:" for c in given):
            return given
        return "req" + secrets.token_hex(12)

    def bearer(self) -> str:
        """Return the bearer token, or refuse with 401."""
        kind, _, token = self.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Unauthenticated("no bearer token", hint="Send `Authorization: Bearer <attachment token>`.")
        return token.strip()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give the body as it arrives; raises ClientGoneError when the client hangs up before its end."""
        while not self._body_done:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            self._body_done = not message.get("more_body", False)
            if chunk := message.get("body", b""):
                yield chunk

    async def json(self) -> dict[str, Any]:
        """Return the body as a JSON object of at most 64 KiB."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > MAX_JSON_BODY:
                raise RequestTooLarge(f"the body is larger than {MAX_JSON_BODY} bytes")
        try:
            value = json.loads(bytes(body))
        except ValueError:
            raise InvalidRequest("the body is not JSON") from None
        if not isinstance(value, dict):
            raise InvalidRequest("the body is not a JSON object")
        return value

    async def disconnected(self) -> None:
        """Return when the client has hung up; any rest of the body is thrown away."""
        while True:
            if (await self._receive())["type"] == "http.disconnect":
                return


class Reply:
    """The answer to one request."""

    def __init__(self, send: Send, request_id: str) -> None:
        """Nothing is sent before `json`, `problem` or `begin`."""
        self._send = send
        self.request_id = request_id
        self.started = False

    async def whole(self, status: int, body: bytes, content_type: bytes) -> None:
        """Send a complete answer."""
        self.started = True
        headers = [
            (b"content-type", content_type),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", self.request_id.encode()),
            (b"cache-control", b"no-store"),
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def json(self, status: int, value: object) -> None:
        """Send a JSON answer."""
        await self.whole(status, json.dumps(value).encode(), b"application/json")

    async def problem(self, error: SpaceError) -> None:
        """Send an error as application/problem+json."""
        await self.document(status_of(error), document_of(error, self.request_id))

    async def document(self, status: int, problem: dict[str, object]) -> None:
        """Send a problem document that is already made."""
        await self.whole(status, json.dumps(problem).encode(), b"application/problem+json")

    async def begin(self, content_type: bytes) -> None:
        """Send the head of a streamed answer at once."""
        self.started = True
        headers = [
            (b"content-type", content_type),
            (b"x-request-id", self.request_id.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send bytes now; waits while the client does not read (the server's write buffer holds 64 KiB)."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """Finish a streamed answer."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
