"""The real ASGI application on a real PostgreSQL, with keys of two organisations and a node that has the template."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.postgres import TestServer, server

from space.api.app import make_app
from space.api.context import Platform
from space.api.keys import new_key
from space.base.settings import Settings
from space.store import Database


@pytest.fixture(scope="session")
def postgres() -> Iterator[TestServer]:
    with asyncio.Runner() as runner:
        context = server()
        yield runner.run(context.__aenter__())
        runner.run(context.__aexit__(None, None, None))


@dataclass
class Api:
    client: httpx.AsyncClient
    platform: Platform
    dsn: str
    keys: dict[str, str]

    async def call(self, method: str, path: str, *, key: str = "operator", **kwargs: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys.get(key, key)}", **kwargs.pop("headers", {})}  # type: ignore[dict-item]
        return await self.client.request(method, path, headers=headers, **kwargs)  # type: ignore[arg-type]

    async def sql(self, statement: str, *args: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return list(await connection.fetch(statement, *args))
        finally:
            await connection.close()

    async def running(self) -> str:
        answer = await self.call("POST", "/v1/sandboxes", json={})
        assert answer.status_code == 202, answer.text
        sandbox = str(answer.json()["sandbox"]["id"])
        await self.sql("update sandboxes set state = 'running', node_id = 'node1' where id = $1", sandbox)
        return sandbox


@pytest.fixture
async def api(postgres: TestServer, tmp_path: Path) -> AsyncIterator[Api]:
    async with postgres.database() as dsn:
        db = await Database.open(dsn)
        keys = {}
        for name, org, role in (
            ("operator", "one", "operator"),
            ("member", "one", "member"),
            ("other", "two", "operator"),
        ):
            keys[name], sha256 = new_key()
            await db.execute("add_organisation", org_id=org)
            await db.fetchrow(
                "add_key", id=f"key{name}", org_id=org, name=name, role=role, scopes=[], sha256=sha256, created_by="t"
            )
        settings = Settings.load({"SPACE_STATE_DIR": str(tmp_path), "SPACE_DATA_PLANE_URL": "http://127.0.0.1:1"})
        async with httpx.AsyncClient(trust_env=False) as http:
            platform = Platform(db, settings, Ed25519PrivateKey.generate(), http)
            await db.listen({"space_operation": platform.waiters.wake})
            transport = httpx.ASGITransport(make_app(platform), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
                result = Api(client, platform, dsn, keys)
                await result.sql("insert into nodes (id, name, state) values ('node1', 'n', 'ready')")
                await result.sql("insert into templates values ('seed:latest', 'node1', 'sha256:00', 900)")
                yield result
        await db.close()
