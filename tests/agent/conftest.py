"""Builds the agent once per state of its source and runs it on the host."""

import asyncio
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from space.guest.client import GuestClient

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def agent_path() -> Path:
    sources = [*sorted((ROOT / "agent").glob("*.go")), ROOT / "agent" / "go.mod"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    target = ROOT / ".cache" / "agent" / digest / "space-agent"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        go = shutil.which("go") or str(Path(sys.executable).parent / "go")
        env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOPROXY": "off"}
        subprocess.run([go, "vet", "."], cwd=ROOT / "agent", env=env, check=True)
        part = target.with_suffix(f".{os.getpid()}")
        subprocess.run([go, "build", "-o", str(part), "."], cwd=ROOT / "agent", env=env, check=True)
        part.replace(target)
    return target


@pytest.fixture(scope="session")
def agent_port(agent_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port_file = tmp_path_factory.mktemp("agent") / "port"
    process = subprocess.Popen([agent_path, "--listen", "tcp:127.0.0.1:0", "--port-file", port_file])
    try:
        for _ in range(500):
            if port_file.exists():
                break
            try:
                process.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError("the agent ended at once")
        yield int(port_file.read_text())
        assert process.poll() is None, "the agent died during the tests"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def client(agent_port: int) -> GuestClient:
    async def dial() -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", agent_port))
        except BaseException:
            sock.close()
            raise
        return sock

    return GuestClient(dial)
