"""A controller on a real database and real TLS, and nodes that speak its protocol."""

import asyncio
import hashlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from tests.postgres import server

from space.base.settings import Settings
from space.controller import ca
from space.controller.app import Controller
from space.store import Database
from space.wire.lines import MAX_LINE, Lines


@dataclass
class Rig:
    """A running controller and direct access to its database."""

    controller: Controller
    sql: asyncpg.Connection
    state: Path

    async def node(self, name: str, token: str) -> None:
        """What the API does for `space node add`."""
        await self.sql.execute(
            "insert into nodes (id, name, enrolment_sha256, enrolment_expires)"
            " values ($1, $1, $2, now() + interval '1 minute')",
            name,
            hashlib.sha256(token.encode()).digest(),
        )

    async def dial(self, certificate: tuple[Path, Path] | None = None) -> Lines:
        context = ssl.create_default_context(cafile=str(self.state / "ca/ca.crt"))
        if certificate:
            context.load_cert_chain(*certificate)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.controller.port, ssl=context, server_hostname="space-controller", limit=MAX_LINE
        )
        return Lines(reader, writer)

    async def enrol(self, token: str) -> dict[str, object]:
        key = ca.new_key()
        lines = await self.dial()
        await lines.send({"type": "enrol", "token": token, "csr": ca.make_csr(key).decode()})
        answer = await lines.receive(10)
        lines.close()
        assert answer is not None
        if answer["type"] == "enrolled":
            (self.state / f"{answer['node']}.crt").write_text(str(answer["certificate"]))
            (self.state / f"{answer['node']}.key").write_bytes(ca.key_pem(key))
        return answer

    async def connect(self, node: str, claim: str | None = None) -> Lines:
        lines = await self.dial((self.state / f"{node}.crt", self.state / f"{node}.key"))
        hello = {
            "type": "hello", "node": claim or node, "machine": {"isolation": "emulated"},
            "capacity": {"vcpus": 2, "memory_mib": 4096, "disk_mib": 50000, "max_sandboxes": 10},
            "templates": [{"name": "seed:latest", "digest": "sha256:aa", "size_mib": 1}],
        }  # fmt: skip
        await lines.send(hello)
        return lines

    async def sandbox(self, sandbox: str, template: str = "seed:latest") -> None:
        await self.sql.execute("insert into organisations (id) values ('org1') on conflict do nothing")
        await self.sql.execute(
            "insert into sandboxes"
            " (id, org_id, template, vcpus, memory_mib, disk_mib, timeout_ms, created_by, expires_at)"
            " values ($1, 'org1', $2, 1, 512, 1024, 60000, 'key1', now() + interval '1 minute')",
            sandbox,
            template,
        )
        await self.sql.execute(
            "insert into operations (id, org_id, sandbox_id, kind, request_id) values ($1, 'org1', $2, 'create', 'r')",
            f"op-{sandbox}",
            sandbox,
        )


@pytest.fixture(params=[True, False], ids=["notified", "by-time"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with server() as postgres, postgres.database() as dsn:
        db = await Database.open(dsn)
        settings = Settings.load({"SPACE_STATE_DIR": str(tmp_path)}).model_copy(update={"node_listen_port": 0})
        controller = Controller(settings, db, notifications=request.param)
        await controller.open()
        sql = await asyncpg.connect(dsn)
        try:
            yield Rig(controller, sql, tmp_path)
        finally:
            await sql.close()
            await controller.close()
            await db.close()


def dumps(value: object) -> str:
    """For jsonb parameters."""
    return json.dumps(value)
