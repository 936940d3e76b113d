"""The request trail end to end: a real deployment, real machines, the real command line and the example program."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.conftest import REPO, Deployment

pytestmark = pytest.mark.timeout(600)


def test_example_program(deployment: Deployment) -> None:
    env = deployment.env | {
        "SPACE_API_URL": deployment.context["api_url"],
        "SPACE_DATA_PLANE_URL": deployment.context["data_plane_url"],
        "SPACE_API_TOKEN": deployment.context["api_token"],
        "SPACE_TEMPLATE": "seed:latest",
    }
    done = subprocess.run(
        [sys.executable, str(REPO / "examples/first_sandbox.py")],
        env=env,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hello from SPACE" in done.stdout
    assert done.stdout.rstrip().endswith("Command completed successfully")


def test_run_gives_the_remote_exit_code_and_removes_the_sandbox(deployment: Deployment) -> None:
    done = deployment.space("run", "--", "python3", "-c", "import sys; print(6*7); sys.exit(7)")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "42\n"
    listed = json.loads(deployment.space("sandbox", "ls", "--json").stdout)
    items = listed["items"] if isinstance(listed, dict) else listed
    assert all(item["state"] in ("deleting", "deleted") for item in items)


def test_the_guest_has_no_network_and_is_refused_at_once(deployment: Deployment) -> None:
    probe = (
        "import socket,time\nt=time.time()\n"
        "try:\n socket.create_connection(('1.1.1.1',443),timeout=20)\n"
        "except OSError as e:\n print(type(e).__name__, time.time()-t<5)"
    )
    done = deployment.space("run", "--", "python3", "-c", probe)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "True", done.stdout
    assert "timeout" not in done.stdout.lower()


def test_missing_executable_is_named(deployment: Deployment) -> None:
    done = deployment.space("run", "--", "no-such-program-here")
    assert done.returncode == 127
    assert "no-such-program-here" in done.stderr
    assert "Traceback" not in done.stderr


def test_dead_machine_is_shown_as_failed(deployment: Deployment) -> None:
    with deployment.api() as api:
        made = api.post("/v1/sandboxes", json={}).json()
        operation = api.get(f"/v1/operations/{made['operation']['id']}", params={"wait": "55s"}).json()
        assert operation["state"] == "succeeded", operation
        sandbox = made["sandbox"]["id"]
        pid = machine_pid(sandbox)
        subprocess.run(["kill", "-9", str(pid)], check=True)
        deadline = time.monotonic() + 5
        while (shown := api.get(f"/v1/sandboxes/{sandbox}").json())["state"] != "failed":
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)
        assert shown["reason"]
        gone = api.delete(f"/v1/sandboxes/{sandbox}").json()
        operation = api.get(f"/v1/operations/{gone['operation']['id']}", params={"wait": "30s"}).json()
        assert operation["state"] == "succeeded", operation


def machine_pid(sandbox: str) -> int:
    """The process whose command line names this sandbox's machine."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if line.startswith(b"/usr/bin/qemu-system") and sandbox.encode() in line:
                return int(entry.name)
    raise AssertionError(f"no machine process for {sandbox}")


def test_standard_input_arrives_whole(deployment: Deployment) -> None:
    text = "".join(f"line {n}\n" for n in range(20_000))
    done = deployment.space("run", "--", "cat", stdin=text)
    assert done.returncode == 0, done.stderr
    assert done.stdout == text
    assert done.stderr == ""


def test_each_part_runs_under_its_own_user(deployment: Deployment) -> None:
    parts = json.loads(deployment.space("status", "--json").stdout)["parts"]
    owners = {}
    for part in parts:
        status = Path(f"/proc/{part['pid']}/status").read_text()
        uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
        assert len(set(uids)) == 1, (part, uids)
        owners[part["name"]] = int(uids[0])
    assert set(owners) == {"postgres", "api", "controller", "dataplane", "worker"}
    assert owners["worker"] == 0
    assert 0 not in {uid for name, uid in owners.items() if name != "worker"}
    assert len(set(owners.values())) == len(owners), owners


@pytest.mark.parametrize("part", ["api", "controller", "dataplane"])
def test_a_killed_part_comes_back_and_serves(deployment: Deployment, part: str) -> None:
    pid = next(p["pid"] for p in json.loads(deployment.space("status", "--json").stdout)["parts"] if p["name"] == part)
    subprocess.run(["kill", "-9", str(pid)], check=True)
    deadline = time.monotonic() + 20
    while (done := deployment.space("run", "--", "true")).returncode != 0:
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.5)
