"""The one call from the data plane to the API: a command's specification, with the client's own token."""

import asyncio
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

import h11

from space.dataplane.problems import ApiRefusedError
from space.domain.errors import PlatformUnavailable

MAX_ANSWER = 4 * 1024 * 1024  # a specification holds arguments and environment; the API takes less than 1 MiB
DEADLINE_S = 10.0  # the API answers it from one row; longer means that it is down


class ApiLink:
    """A small HTTP client; each call has its own connection, so nothing idles between rare calls."""

    def __init__(self, url: str) -> None:
        """`url` is the API's address as this process reaches it."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"the API's address is not an http(s) URL: {url}")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]

    async def spec(self, command: str, token: str, request_id: str) -> dict[str, Any]:
        """Return the answer of `GET /internal/v1/commands/{command}/spec`.

        Raises ApiRefusedError with the API's problem, PlatformUnavailable when it does not answer.
        """
        try:
            async with asyncio.timeout(DEADLINE_S):
                status, body = await self._get(f"/internal/v1/commands/{command}/spec", token, request_id)
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            raise PlatformUnavailable("the API did not give the command's specification") from error
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise PlatformUnavailable(f"the API's answer ({status}) is not a JSON object")
        if status != 200:
            if status >= 500 or "code" not in document:
                raise PlatformUnavailable(f"the API answered {status} for the command's specification")
            raise ApiRefusedError(status, document)
        return document

    async def _get(self, path: str, token: str, request_id: str) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            connection = h11.Connection(our_role=h11.CLIENT)
            headers = [
                ("host", self._authority),
                ("authorization", f"Bearer {token}"),
                ("x-request-id", request_id),
                ("accept", "application/json"),
                ("connection", "close"),
            ]
            writer.write(connection.send(h11.Request(method="GET", target=self._prefix + path, headers=headers)) or b"")
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            await writer.drain()
            return await _answer(connection, reader)
        finally:
            writer.transport.abort()


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, body = 0, bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_ANSWER:
                raise PlatformUnavailable("the API's answer is too long")
        elif isinstance(event, h11.EndOfMessage):
            return status, bytes(body)
        elif isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("the API hung up")
