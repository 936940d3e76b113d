"""The database as the rest of SPACE sees it: named queries over a pool, transactions, wake-ups, advisory locks.

LISTEN and advisory locks use direct connections of their own, so they work behind a transaction pooler for the rest.
A wake-up is only a hint: after a reconnect every callback is called once with an empty payload, "look at everything".
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from space.base.logs import get_logger
from space.base.tasks import spawn
from space.store import queries
from space.store.errors import border, is_unavailable

Record = asyncpg.Record
if TYPE_CHECKING:  # the class takes parameters in the stubs only
    Connection = asyncpg.Connection[asyncpg.Record]
Callback = Callable[[str], None]

# One process's share: enough for the API's waits between two queries; embedded PostgreSQL allows 100 in all.
POOL_MAX = 10
# Longer than any query here takes on a loaded laptop; a caller hears platform_unavailable instead of hanging.
STATEMENT_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
# A broken LISTEN connection only delays hints, so a calm pace of retries costs nothing.
RECONNECT_S = 1.0
# A silent half-open connection is found by this ping; loops wake by time anyway.
PING_S = 15.0


def lock_number(name: str) -> int:
    """The advisory lock's key: 63 bits of the name's SHA-256."""
    return int.from_bytes(hashlib.sha256(f"space:{name}".encode()).digest()[:8], "big") >> 1


async def _prepare(connection: Any) -> None:
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


async def connect(dsn: str) -> Connection:
    """A direct connection, with JSON columns as Python values."""
    connection = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    await _prepare(connection)
    return connection


class Transaction:
    """Named queries on one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, query_name: str, /, **params: object) -> list[Record]:
        """All rows of a named query."""
        query = queries.load()[query_name]
        with border():
            return list(await self._connection.fetch(query.sql, *query.arguments(params)))

    async def fetchrow(self, query_name: str, /, **params: object) -> Record | None:
        """The first row, or None."""
        query = queries.load()[query_name]
        with border():
            row: Record | None = await self._connection.fetchrow(query.sql, *query.arguments(params))
            return row

    async def fetchval(self, query_name: str, /, **params: object) -> Any:
        """The first column of the first row, or None."""
        row = await self.fetchrow(query_name, **params)
        return None if row is None else row[0]

    async def execute(self, query_name: str, /, **params: object) -> int:
        """Run a statement and return how many rows it touched."""
        query = queries.load()[query_name]
        with border():
            status = await self._connection.execute(query.sql, *query.arguments(params))
        last = status.rsplit(" ", 1)[-1]
        return int(last) if last.isdigit() else 0


class Database:
    """A pool of connections; make one with `Database.open`."""

    def __init__(self, dsn: str, pool: Any) -> None:
        self.dsn = dsn
        self._pool = pool
        self._listeners: list[asyncio.Task[Any]] = []

    @classmethod
    async def open(cls, dsn: str, *, max_size: int = POOL_MAX) -> Database:
        """Connect; PlatformUnavailable when the server does not answer."""
        with border():
            pool = await asyncpg.create_pool(
                dsn, min_size=1, max_size=max_size, init=_prepare, timeout=CONNECT_TIMEOUT_S,
                command_timeout=STATEMENT_TIMEOUT_S,
            )  # fmt: skip
        return cls(dsn, pool)

    async def close(self) -> None:
        """End the listeners, then the pool."""
        for task in self._listeners:
            task.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        self._listeners.clear()
        try:
            await asyncio.wait_for(self._pool.close(), CONNECT_TIMEOUT_S)
        except (TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresError, OSError):
            self._pool.terminate()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Transaction]:
        with border():
            connection = await self._pool.acquire(timeout=CONNECT_TIMEOUT_S)
        try:
            yield Transaction(connection)
        finally:
            await self._pool.release(connection)

    async def fetch(self, query_name: str, /, **params: object) -> list[Record]:
        """All rows of a named query."""
        async with self._connection() as connection:
            return await connection.fetch(query_name, **params)

    async def fetchrow(self, query_name: str, /, **params: object) -> Record | None:
        """The first row, or None."""
        async with self._connection() as connection:
            return await connection.fetchrow(query_name, **params)

    async def fetchval(self, query_name: str, /, **params: object) -> Any:
        """The first column of the first row, or None."""
        async with self._connection() as connection:
            return await connection.fetchval(query_name, **params)

    async def execute(self, query_name: str, /, **params: object) -> int:
        """Run a statement and return how many rows it touched."""
        async with self._connection() as connection:
            return await connection.execute(query_name, **params)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """All or nothing: committed when the block ends, rolled back when it raises."""
        with border():
            connection = await self._pool.acquire(timeout=CONNECT_TIMEOUT_S)
        try:
            transaction = connection.transaction()
            with border():
                await transaction.start()
            try:
                yield Transaction(connection)
            except BaseException:
                with suppress(asyncpg.InterfaceError, asyncpg.PostgresError, OSError):
                    await transaction.rollback()
                raise
            with border():
                await transaction.commit()
        finally:
            await self._pool.release(connection)

    async def listen(self, callbacks: Mapping[str, Callback]) -> None:
        """Call `callbacks[channel](payload)` for every wake-up, from a connection that is made again when it breaks.

        Returns once the first LISTEN stands (or failed: the retries go on). Ends with `close`.
        """
        ready = asyncio.Event()
        task = spawn(f"listen {','.join(callbacks)}", self._listen(dict(callbacks), ready))
        self._listeners.append(task)
        await ready.wait()

    async def _listen(self, callbacks: dict[str, Callback], ready: asyncio.Event) -> None:
        first = True
        while True:
            try:
                await self._listen_once(callbacks, ready, catch_up=not first)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                if not is_unavailable(error):
                    get_logger().warning("listen broke", action="listen_broken", error=str(error))
            first = False
            ready.set()
            await asyncio.sleep(RECONNECT_S)

    async def _listen_once(self, callbacks: dict[str, Callback], ready: asyncio.Event, *, catch_up: bool) -> None:
        connection = await connect(self.dsn)
        try:
            for channel in callbacks:
                await connection.add_listener(channel, lambda _c, _pid, name, payload: callbacks[name](str(payload)))
            if catch_up:
                for callback in callbacks.values():
                    callback("")
            ready.set()
            while not connection.is_closed():
                await asyncio.sleep(PING_S)
                await connection.execute("select 1", timeout=CONNECT_TIMEOUT_S)
        finally:
            connection.terminate()

    @asynccontextmanager
    async def try_advisory_lock(self, name: str) -> AsyncIterator[Lock | None]:
        """Hold the named lock on a connection of its own; None when another process holds it.

        The holder should ask `held()` before each pass: a broken connection loses the lock.
        """
        with border():
            connection = await connect(self.dsn)
        try:
            with border():
                got = await connection.fetchval("select pg_try_advisory_lock($1)", lock_number(name))
            yield Lock(connection) if got else None
        finally:
            connection.terminate()


class Lock:
    """A held advisory lock."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def held(self) -> bool:
        """Whether the connection that holds the lock still stands."""
        try:
            await self._connection.execute("select 1", timeout=CONNECT_TIMEOUT_S)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            return False
        return True
