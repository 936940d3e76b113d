"""Real parts for the data plane: its own process, the real agent on this host, a worker's socket, a spec server."""

import base64
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from space.wire.tokens import attachment_claims, sandbox_claims, sign

ROOT = Path(__file__).parents[2]
SANDBOX = "sbx" + "a" * 24


@pytest.fixture(scope="session")
def agent_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("agent") / "space-agent"
    go = ROOT / ".venv/bin/go"
    env = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run([go, "build", "-o", out, "."], cwd=ROOT / "agent", env=env, check=True, timeout=170)
    return out


@dataclass
class WorkerStandIn:
    """Speaks the worker's unix socket: a few lines of wire/local with descriptor passing."""

    path: Path
    agent_port: int
    reports: list[dict[str, Any]] = field(default_factory=list)
    here: bool = True
    _listener: socket.socket | None = None
    _open: list[socket.socket] = field(default_factory=list)

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                self._answer(connection, json.loads(line))

    def _answer(self, connection: socket.socket, message: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"ok": True}
        if message["op"] == "open":
            if not self.here or message["sandbox"] != SANDBOX:
                reply = {"ok": False, "code": "sandbox_not_here"}
            else:
                with socket.create_connection(("127.0.0.1", self.agent_port)) as guest:
                    socket.send_fds(connection, [b'{"ok":true,"epoch":1}\n'], [guest.fileno()])
                return
        elif message["op"] == "list":
            reply = {"sandboxes": [{"id": SANDBOX, "epoch": 1}]}
        elif message["op"] == "report":
            self.reports.append(message["command"])
        elif message["op"] == "console":
            reply = {"data": base64.b64encode(b"console tail").decode()}
        connection.sendall(json.dumps(reply).encode() + b"\n")


@dataclass
class World:
    """What a test needs to talk to the data plane."""

    url: str
    key: Ed25519PrivateKey
    specs: dict[str, dict[str, Any]]
    worker: WorkerStandIn
    agent_pid: int
    pid: int
    spec_calls: list[str]

    def command(self, *command: str, **spec: Any) -> tuple[str, dict[str, str]]:
        """Make a command known to the spec server; give its id and the headers of its attachment."""
        cmd = "cmd" + secrets.token_hex(12)
        self.specs[cmd] = {"command": list(command), **spec}
        return cmd, self.headers(cmd)

    def headers(self, cmd: str, ttl_s: float = 60) -> dict[str, str]:
        claims = attachment_claims(command=cmd, sandbox=SANDBOX, org="org1", node="n1", ttl_s=ttl_s)
        return {"Authorization": "Bearer " + sign(claims, self.key)}

    def sandbox_headers(self, *scopes: str) -> dict[str, str]:
        claims = sandbox_claims(sandbox=SANDBOX, org="org1", scopes=list(scopes), ttl_s=60)
        return {"Authorization": "Bearer " + sign(claims, self.key)}

    def attach_url(self, cmd: str) -> str:
        return f"{self.url}/v1/commands/{cmd}/attach"

    def run(self, *command: str, **spec: Any) -> list[dict[str, Any]]:
        """Attach to a new command and give all events but heartbeats."""
        cmd, headers = self.command(*command, **spec)
        return self.follow(cmd, headers)

    def follow(self, cmd: str, headers: dict[str, str], method: str = "POST", **params: str) -> list[dict[str, Any]]:
        with httpx.stream(method, self.attach_url(cmd), headers=headers, params=params, timeout=60) as answer:
            assert answer.status_code == 200, answer.read()
            events = [json.loads(line) for line in answer.iter_lines()]
        return [event for event in events if event["type"] != "heartbeat"]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _spec_server(specs: dict[str, dict[str, Any]], calls: list[str]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cmd = self.path.split("/")[4]
            calls.append(cmd)
            found = specs.get(cmd)
            body = {"spec": found} if found else {"code": "command_not_found", "status": 404}
            data = json.dumps(body).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture
def world(agent_binary: Path, tmp_path: Path) -> Iterator[World]:
    port_file = tmp_path / "port"
    agent = subprocess.Popen([agent_binary, "--listen", "tcp:127.0.0.1:0", "--port-file", port_file])
    deadline = time.monotonic() + 20
    while not port_file.exists():
        assert time.monotonic() < deadline, "the agent did not listen"
        time.sleep(0.05)
    (tmp_path / "worker").mkdir()
    worker = WorkerStandIn(tmp_path / "worker" / "worker.sock", int(port_file.read_text()))
    worker.start()
    key = Ed25519PrivateKey.generate()
    (tmp_path / "keys").mkdir()
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "keys" / "data-plane.pub").write_bytes(pem)
    specs: dict[str, dict[str, Any]] = {}
    calls: list[str] = []
    api = _spec_server(specs, calls)
    port = _free_port()
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("SPACE_")},
        "SPACE_STATE_DIR": str(tmp_path),
        "SPACE_RUN_DIR": str(tmp_path),
        "SPACE_DATA_PLANE_PORT": str(port),
        "SPACE_API_URL": f"http://127.0.0.1:{api.server_address[1]}",
    }
    dataplane = subprocess.Popen([sys.executable, "-m", "space.dataplane"], env=env, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_healthy(url, dataplane)
        yield World(url, key, specs, worker, agent.pid, dataplane.pid, calls)
    finally:
        _ended(dataplane)
        _ended(agent)
        if worker.path.exists():
            worker.stop()
        api.shutdown()
        api.server_close()
    assert dataplane.returncode == 0


def _wait_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None, "the data plane ended"
        assert time.monotonic() < deadline, "the data plane did not listen"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url + "/healthz").status_code == 200:
                return
        time.sleep(0.1)
