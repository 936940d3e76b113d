"""What every route needs: who calls, the database, tokens, paging, idempotency."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import Depends, Request

from space.api import keys
from space.base.settings import Settings
from space.domain.errors import (
    Forbidden,
    IdempotencyConflict,
    InvalidCursor,
    InvalidRequest,
    PlatformUnavailable,
    SandboxNotFound,
    Unauthenticated,
    WrongTokenKind,
    catalogue,
)
from space.domain.ids import is_id
from space.store import Database, Record, Transaction
from space.wire import tokens

# An operation's wake-up may be lost; a waiter looks again this often.
LOOK_AGAIN_S = 2.0
# The data plane answers live calls from a machine beside it; longer means it hangs.
LIVE_TIMEOUT_S = 15.0


class Waiters:
    """Who waits for which operation; fed by the wake-ups."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = defaultdict(set)

    def wake(self, payload: str) -> None:
        """An operation changed; an empty payload means that any may have."""
        for name in [payload] if payload else list(self._events):
            for event in self._events.get(name, ()):
                event.set()

    async def wait(self, name: str, seconds: float) -> None:
        """Until the operation changes, or for `seconds`."""
        event = asyncio.Event()
        self._events[name].add(event)
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._events[name].discard(event)
            if not self._events[name]:
                del self._events[name]


@dataclass
class Platform:
    """The parts of a running API."""

    db: Database
    settings: Settings
    key: Ed25519PrivateKey
    http: httpx.AsyncClient
    waiters: Waiters = field(default_factory=Waiters)

    def attachment(self, command: Record, node: str | None) -> dict[str, Any]:
        """The address and a new token for attaching to a command."""
        ttl = float(self.settings.token_ttl)
        claims = tokens.attachment_claims(
            command=command["id"], sandbox=command["sandbox_id"], org=command["org_id"], node=node, ttl_s=ttl
        )
        url = f"{self.settings.public_data_plane_url}/v1/commands/{command['id']}/attach"
        return {
            "url": url,
            "token": tokens.sign(claims, self.key),
            "expires_at": datetime.fromtimestamp(claims.exp, UTC),
        }

    async def live(self, method: str, path: str, token: str, body: object = None) -> Any:
        """A call on the data plane; its problem becomes ours."""
        headers = {"Authorization": f"Bearer {token}"}
        try:
            answer = await self.http.request(
                method,
                f"{self.settings.public_data_plane_url}{path}",
                headers=headers,
                json=body,
                timeout=LIVE_TIMEOUT_S,
            )
            value = answer.json() if answer.content else {}
        except (httpx.HTTPError, ValueError) as error:
            raise PlatformUnavailable("the data plane does not answer") from error
        if answer.status_code < 400:
            return value
        code = value.get("code") if isinstance(value, dict) else None
        known = catalogue().get(str(code))
        if known is None or code in ("unauthenticated", "wrong_token_kind"):
            raise PlatformUnavailable(f"the data plane answered {answer.status_code} {code}")
        raise known(value.get("detail"))

    def sandbox_token(self, sandbox: Record, scopes: list[str], ttl_s: float) -> tuple[str, datetime]:
        """A token for one sandbox and scopes."""
        claims = tokens.sandbox_claims(sandbox=sandbox["id"], org=sandbox["org_id"], scopes=scopes, ttl_s=ttl_s)
        return tokens.sign(claims, self.key), datetime.fromtimestamp(claims.exp, UTC)


def platform(request: Request) -> Platform:
    """The running API's parts."""
    found: Platform = request.app.state.platform
    return found


P = Annotated[Platform, Depends(platform)]


@dataclass(frozen=True)
class Principal:
    """Who calls."""

    key_id: str
    org_id: str
    role: str
    scopes: frozenset[str]
    request_id: str

    def need(self, scope: str) -> None:
        """Forbidden unless the key has the scope; a key with no scopes may all that its role may."""
        if self.scopes and scope not in self.scopes:
            raise Forbidden(f"the key lacks the scope {scope}")

    def need_operator(self) -> None:
        """Forbidden unless the key is an operator's."""
        if self.role != "operator":
            raise Forbidden("this call is the operator's")


def bearer(request: Request) -> str:
    """The token in the Authorization header."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated
    return token.strip()


async def authenticate(request: Request, parts: P) -> Principal:
    """The caller, from the API key."""
    token = bearer(request)
    if token.count(".") == 2:
        raise WrongTokenKind
    sha256 = keys.hash_of(token)
    row = await parts.db.fetchrow("key_by_hash", sha256=sha256) if sha256 else None
    if row is None:
        raise Unauthenticated("the key is not known, has expired or was revoked")
    return Principal(row["id"], row["org_id"], row["role"], frozenset(row["scopes"]), request.state.request_id)


Who = Annotated[Principal, Depends(authenticate)]


async def sandbox_of(
    parts: Platform | Transaction, who: Principal, sandbox_id: str, *, query: str = "get_sandbox"
) -> Record:
    """The caller's sandbox; SandboxNotFound also for another organisation's."""
    db = parts.db if isinstance(parts, Platform) else parts
    row = await db.fetchrow(query, id=sandbox_id, org_id=who.org_id) if is_id(sandbox_id, "sbx") else None
    if row is None:
        raise SandboxNotFound
    return row


@dataclass(frozen=True)
class Page:
    """A place in a list that is newest first."""

    limit: int
    at: datetime | None
    id: str | None

    def params(self) -> dict[str, Any]:
        """For a query; one row more than the page tells whether there is a next one."""
        return {"before_at": self.at, "before_id": self.id, "size": self.limit + 1}

    def answer(self, rows: list[Record], show: Callable[[Record], dict[str, Any]]) -> dict[str, Any]:
        """The items and the cursor of the next page."""
        cursor = None
        if len(rows) > self.limit:
            last = rows[self.limit - 1]
            text = json.dumps([last["created_at"].isoformat(), last["id"]])
            cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        return {"items": [show(row) for row in rows[: self.limit]], "next_cursor": cursor}


def parse_page(limit: int, cursor: str | None) -> Page:
    """InvalidCursor unless the cursor is one of ours."""
    if cursor is None:
        return Page(limit, None, None)
    try:
        at, last = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        when = datetime.fromisoformat(at)
    except (ValueError, TypeError) as error:
        raise InvalidCursor from error
    if not isinstance(last, str) or not last.isalnum() or not last.isascii() or when.tzinfo is None:
        raise InvalidCursor
    return Page(limit, when, last)


async def once(
    request: Request, tx: Transaction, who: Principal, make: Callable[[], Awaitable[dict[str, Any]]]
) -> tuple[dict[str, Any], bool]:
    """Do it once per Idempotency-Key: the answer of `make`, or the earlier one (and True) to the same request."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return await make(), False
    if not 0 < len(key) <= 255 or not key.isprintable() or not key.isascii():
        raise InvalidRequest("Idempotency-Key must be 1 to 255 printable ASCII characters")
    digest = hashlib.sha256(f"{request.url.path}\n".encode() + await request.body()).digest()
    await tx.fetchrow("lock_idempotency_key", org_id=who.org_id, key=key)
    before = await tx.fetchrow("get_idempotency_key", org_id=who.org_id, key=key)
    if before is not None:
        if before["body_sha256"] != digest:
            raise IdempotencyConflict
        return dict(before["response"]), True
    answer = await make()
    kept = json.loads(json.dumps(answer, default=_json))
    await tx.execute("put_idempotency_key", org_id=who.org_id, key=key, body_sha256=digest, status=200, response=kept)
    return answer, False


def _json(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    raise TypeError(type(value).__name__)


def monotonic() -> float:
    """Seconds that only go forward."""
    return time.monotonic()
