"""The whole platform of one host as one object: bring it up in order, watch it, take it down in the reverse order."""

import asyncio
import contextlib
import json
import os
import socket
from datetime import UTC, datetime

import httpx
from pydantic import SecretStr

from space.base.logs import get_logger
from space.base.settings import Settings, client_environment
from space.base.tasks import cancel, spawn
from space.store.embedded import EmbeddedPostgres
from space.store.pool import Database
from space.supervisor import certificates, database, layout, template, users
from space.supervisor.layout import Places
from space.supervisor.parts import LogFile, Part, PartSpec
from space.supervisor.users import API, CONTROLLER, DATAPLANE, Account

# A part that has not answered by then will not: imports and a migration take 2-5 s on a loaded laptop.
READY_S = 60.0
# The worker first proves a driver by booting a guest, possibly two of them until their deadline.
NODE_READY_S = 150.0
# Machines end within a second each; a whole node's worth within this.
DELETE_S = 60.0


class StartError(Exception):
    """The platform could not be brought up; the hint says where to look."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Platform:
    """Everything that one ``space up`` started."""

    def __init__(self, settings: Settings, *, echo: bool) -> None:
        self.settings = settings
        self.places = Places.of(settings)
        self.node = settings.node_name or socket.gethostname()
        self.operator_key = ""
        self.isolation = "unknown"
        self._echo = echo
        self._parts: list[Part] = []
        self._postgres: EmbeddedPostgres | None = None
        self._database: Database | None = None
        self._pool_open = False
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        self._writer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bring everything up; returns when a sandbox could be created."""
        accounts = await users.ensure()
        group = await users.ensure_database_group()
        layout.make_directories(self.places, accounts)
        layout.ensure_token_key(self.places, accounts)
        certificates.ensure(self.places, accounts)
        dsn, self._postgres = await database.start(self.settings, self.places)
        self._database = await Database.open(dsn, max_size=2)
        self.operator_key = await database.ensure_operator_key(self._database, self.places)
        await template.ensure_seed(self.settings)
        self._pool_open = True
        enrolled = (self.places.node / "node.crt").exists()
        token = await database.enrolment_token(self._database, self.node, has_certificate=enrolled)
        for spec in self._specs(dsn, token, accounts, group):
            part = Part(spec, LogFile(self.places.log / f"{spec.name}.log", echo=self._echo))
            self._parts.append(part)
            await part.start()
        self._writer = spawn("status", self._write_status())
        await self._wait_api()
        await self._wait_node()

    def _specs(self, dsn: str, token: str | None, accounts: dict[str, Account], group: int) -> list[PartSpec]:
        base = self.settings.model_copy(
            update={"database_url": None, "api_token": None, "enrol_token": None, "node_name": self.node}
        )
        with_database = base.model_copy(update={"database_url": SecretStr(dsn)})
        for_worker = base.model_copy(update={"enrol_token": SecretStr(token) if token else None})

        def env(settings: Settings) -> dict[str, str]:
            return {**client_environment(), "HOME": "/nonexistent", "PYTHONUNBUFFERED": "1", **settings.environment()}

        return [
            PartSpec("api", "space.api", env(with_database), accounts[API], (group,)),
            PartSpec("controller", "space.controller", env(with_database), accounts[CONTROLLER], (group,)),
            PartSpec("dataplane", "space.dataplane", env(base), accounts[DATAPLANE]),
            PartSpec("worker", "space.worker", env(for_worker), None),
        ]

    async def _wait_api(self) -> None:
        url = f"http://{self.settings.api_host}:{self.settings.ops_port}/readyz"
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            for _ in range(int(READY_S / 0.1)):
                with contextlib.suppress(httpx.TransportError):
                    if (await http.get(url)).is_success:
                        return
                self._give_up_on("api")
                await asyncio.sleep(0.1)
        raise StartError(f"the API is not ready after {READY_S:.0f} s", "space logs api")

    async def _wait_node(self) -> None:
        assert self._database is not None
        for _ in range(int(NODE_READY_S / 0.2)):
            row = await self._database.fetchrow("supervisor_node_state", name=self.node)
            if row is not None and row["state"] == "ready":
                self.isolation = str((row["machine"] or {}).get("isolation", "unknown"))
                return
            for name in ("worker", "controller", "dataplane"):
                self._give_up_on(name)
            await asyncio.sleep(0.2)
        raise StartError(f"node {self.node} is not ready after {NODE_READY_S:.0f} s", "space logs worker")

    def _give_up_on(self, name: str) -> None:
        part = next(p for p in self._parts if p.spec.name == name)
        # Three starts in a row: not a passing fault.
        if part.restarts >= 3:
            raise StartError(f"{name} does not stay up (exit code {part.last_exit})", f"space logs {name}")

    def report(self) -> dict[str, object]:
        """What `space status` shows."""
        rows: list[dict[str, object]] = [
            {
                "name": part.spec.name,
                "state": "running" if part.alive else "restarting",
                "pid": part.process.pid if part.process and part.alive else None,
                "user": part.spec.account.name if part.spec.account else "root",
                "restarts": part.restarts,
            }
            for part in self._parts
        ]
        if self._postgres is not None:
            pid = self._postgres.pid
            state = "running" if pid else "stopped"
            rows.insert(0, {"name": "postgres", "state": state, "pid": pid, "user": users.POSTGRES, "restarts": 0})
        return {
            "since": self._since,
            "api_url": self.settings.public_api_url,
            "data_plane_url": self.settings.public_data_plane_url,
            "isolation": self.isolation,
            "node": self.node,
            "parts": rows,
        }

    async def _write_status(self) -> None:
        while True:
            temporary = self.places.status_file.with_suffix(".new")
            temporary.write_text(json.dumps(self.report()))
            os.replace(temporary, self.places.status_file)
            await asyncio.sleep(1.0)

    async def watch_postgres(self) -> None:
        """Start the embedded server again when it ends by itself."""
        server = self._postgres
        while server is not None:
            code = await server.wait()
            get_logger().error("part_died", action="part_died", name="postgres", exit_code=code)
            await asyncio.sleep(0.5)
            await server.start()

    async def stop(self) -> None:
        """Delete the machines, then stop api, controller, dataplane, worker and the database."""
        if self._writer is not None:
            await cancel(self._writer)
        with contextlib.suppress(Exception):
            await self._delete_machines()
        for part in self._parts:
            get_logger().info("stopping", action="part_stop", name=part.spec.name)
            await part.stop(self.settings.drain_timeout)
        if self._database is not None:
            await self._database.close()
        if self._postgres is not None:
            await self._postgres.stop()
        if self._pool_open:
            await template.close_pool(self.settings)
        self.places.status_file.unlink(missing_ok=True)

    async def _delete_machines(self) -> None:
        if self._database is None or not self._parts:
            return
        await self._database.execute("supervisor_delete_all_on_node", name=self.node)
        for _ in range(int(DELETE_S / 0.2)):
            if not await self._database.fetchval("supervisor_left_on_node", name=self.node):
                return
            await asyncio.sleep(0.2)
        get_logger().error("machines are left", action="machines_left", after_s=DELETE_S)
