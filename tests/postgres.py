"""A fresh database for a test: one embedded server a run, each database copied from a migrated template (about 50 ms).

Use: `async with server() as postgres: async with postgres.database() as dsn: …`; works as root and as a user.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from space.store.embedded import ROLE, EmbeddedPostgres
from space.store.migrations import migrate

TEMPLATE = "space_template"


class TestServer:
    """A running embedded server with a migrated template database."""

    __test__ = False

    def __init__(self, embedded: EmbeddedPostgres) -> None:
        self.embedded = embedded

    def dsn(self, name: str) -> str:
        """Of one of its databases."""
        return f"postgresql://{ROLE}@/{name}?host={self.embedded.socket_dir}"

    async def admin(self, statement: str) -> None:
        """Run one statement as the cluster's owner."""
        connection = await asyncpg.connect(self.embedded.admin_dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    @asynccontextmanager
    async def database(self, *, migrated: bool = True) -> AsyncIterator[str]:
        """The DSN of a database of its own, dropped at the end."""
        name = f"t{secrets.token_hex(6)}"
        template = TEMPLATE if migrated else "template1"
        await self.admin(f"create database {name} owner {ROLE} template {template} strategy file_copy")
        try:
            yield self.dsn(name)
        finally:
            await self.admin(f"drop database {name} with (force)")


@asynccontextmanager
async def server() -> AsyncIterator[TestServer]:
    """Start a server in a folder of its own; nothing of it is left at the end."""
    folder = Path(tempfile.mkdtemp(prefix="space-pg-"))
    folder.chmod(0o755)  # the server's user passes through
    # `nobody` exists everywhere; a test leaves no user behind. Lost writes do not matter here, time does.
    user = "nobody" if os.getuid() == 0 else None
    settings = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    embedded = EmbeddedPostgres(folder / "data", folder / "socket", user=user, settings=settings)
    try:
        await embedded.start()
        result = TestServer(embedded)
        await result.admin(f"create database {TEMPLATE} owner {ROLE}")
        await migrate(result.dsn(TEMPLATE))
        yield result
    finally:
        await embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)
