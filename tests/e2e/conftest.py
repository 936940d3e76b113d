"""One whole deployment for this folder: `space up -d` in a scratch state directory, taken down at the end."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

REPO = Path(__file__).resolve().parents[2]
SPACE = str(Path(sys.executable).parent / "space")


@dataclass(frozen=True)
class Deployment:
    """Where a running deployment is and how to speak to it."""

    env: dict[str, str]
    context: dict[str, str]
    state_dir: Path

    def space(self, *words: str, timeout: float = 120, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run the `space` command against this deployment."""
        return subprocess.run(
            [SPACE, *words], env=self.env, text=True, capture_output=True, timeout=timeout, check=False, input=stdin
        )

    def api(self) -> httpx.Client:
        """An HTTP client of the API, with the deployment's key."""
        return httpx.Client(
            base_url=self.context["api_url"],
            headers={"Authorization": f"Bearer {self.context['api_token']}"},
            timeout=60,
        )


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployment]:
    """A deployment of this host for all tests of the session; its state directory is under the repository's cache."""
    base = Path(tempfile.mkdtemp(prefix="space-e2e-"))
    base.chmod(0o755)
    home = base / "home"
    home.mkdir(mode=0o700)
    api, ops, data, node = free_ports(4)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "SPACE_STATE_DIR": str(base / "state"),
        "SPACE_RUN_DIR": str(base / "run"),
        "SPACE_API_PORT": str(api),
        "SPACE_OPS_PORT": str(ops),
        "SPACE_DATA_PLANE_PORT": str(data),
        "SPACE_NODE_LISTEN_PORT": str(node),
        "SPACE_POOL_SIZE_MIB": "8192",
    }
    up = subprocess.run([SPACE, "up", "-d"], env=env, text=True, capture_output=True, timeout=400, check=False)
    try:
        assert up.returncode == 0, f"space up -d failed:\n{up.stdout}\n{up.stderr}"
        context = json.loads((home / ".config/space/context.json").read_text())
        yield Deployment(env=env, context=context, state_dir=base / "state")
    finally:
        subprocess.run([SPACE, "down", "--purge"], env=env, text=True, capture_output=True, timeout=120, check=False)
        shutil.rmtree(base, ignore_errors=True)
