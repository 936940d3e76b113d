"""The calls of the command line to the API and the data plane. Only for ``cli``; the SDK is a package of its own."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from space.cli.context import Context
from space.cli.problems import CliError

Json = dict[str, Any]
# A call that waits asks for 20 s at a time; the client's own patience must be longer.
WAIT = "20s"
TIMEOUT = httpx.Timeout(30.0, connect=5.0)
# The data plane sends a heartbeat every 10 s; three missed ones mean that the connection is dead.
STREAM_TIMEOUT = httpx.Timeout(30.0, connect=5.0)


class Api:
    """One user's connection to the platform."""

    def __init__(self, context: Context) -> None:
        self.context = context
        # trust_env off: a proxy variable of the host must not carry the key away.
        headers = {"Authorization": f"Bearer {context.api_token}"}
        self._http = httpx.Client(base_url=context.api_url, headers=headers, timeout=TIMEOUT, trust_env=False)
        self._data = httpx.Client(timeout=STREAM_TIMEOUT, trust_env=False)

    def close(self) -> None:
        """Close both connections."""
        self._http.close()
        self._data.close()

    def call(self, method: str, path: str, body: object = None, **query: object) -> Json:
        """Make one call; a problem document becomes a ``CliError``."""
        params = {k: str(v) for k, v in query.items() if v is not None}
        try:
            answer = self._http.request(method, path, json=body, params=params)
        except httpx.TransportError as error:
            raise _unreachable(self.context.api_url, error) from error
        return _answer(answer)

    def pages(self, path: str, limit: int | None = None, **query: object) -> Iterator[Json]:
        """Every item of a list, page by page, up to ``limit``."""
        cursor, left = None, limit
        while left is None or left > 0:
            page = self.call("GET", path, cursor=cursor, limit=min(left or 200, 200), **query)
            for item in page.get("items", []):
                yield item
                left = None if left is None else left - 1
                if left == 0:
                    return
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def wait_operation(self, operation: Json, told: Callable[[str], None], patience: float = 300.0) -> Json:
        """Wait until the operation ends and give it; one that failed is an error."""
        deadline = time.monotonic() + patience
        while operation["state"] in ("pending", "running"):
            told(operation.get("progress") or operation["state"])
            if time.monotonic() > deadline:
                raise CliError(f"operation {operation['id']} still runs after {patience:.0f} s", "see `space logs`")
            operation = self.call("GET", f"/v1/operations/{operation['id']}", wait=WAIT)
        if operation["state"] == "failed":
            error = operation.get("error") or {}
            raise CliError(
                error.get("detail") or f"{operation.get('kind', 'operation')} failed",
                error.get("hint") or "",
                code=error.get("code") or "operation_failed",
            )
        return operation

    def data(self, method: str, url: str, token: str, **options: Any) -> Json:
        """One short call on the data plane with a data-plane token."""
        try:
            answer = self._data.request(method, url, headers={"Authorization": f"Bearer {token}"}, **options)
        except httpx.TransportError as error:
            raise _unreachable(url, error) from error
        return _answer(answer)

    def open_stream(self, method: str, url: str, token: str, after: str | None) -> Any:
        """Context manager of a streaming answer; check it with ``raise_problem``."""
        params = {"after": after} if after else {}
        return self._data.stream(method, url, headers={"Authorization": f"Bearer {token}"}, params=params)


def raise_problem(answer: httpx.Response) -> None:
    """Turn a problem document into a ``CliError``; the body of a stream is read only then."""
    if answer.is_success:
        return
    answer.read()
    _answer(answer)


def _answer(answer: httpx.Response) -> Json:
    try:
        body = answer.json() if answer.content else {}
    except ValueError:
        body = {}
    if answer.is_success:
        return body if isinstance(body, dict) else {"items": body}
    problem = body if isinstance(body, dict) else {}
    detail = problem.get("detail") or problem.get("title") or f"HTTP {answer.status_code}"
    request = problem.get("request_id")
    hint = problem.get("hint") or ""
    raise CliError(
        str(detail), f"{hint} (request {request})".strip() if request else hint, code=str(problem.get("code") or "http")
    )


def _unreachable(url: str, error: Exception) -> CliError:
    return CliError(
        f"cannot reach {url}: {error}", "is it running? `space status`, `sudo space up -d`", code="unreachable"
    )
