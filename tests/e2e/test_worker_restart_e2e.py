"""A machine and its command outlive the worker that started them."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from tests.e2e.conftest import Deployment
from tests.e2e.test_first_sandbox_e2e import machine_pid

pytestmark = pytest.mark.timeout(300)


def test_killed_worker_finds_its_machine_and_the_command_goes_on(deployment: Deployment) -> None:
    with deployment.api() as api:
        made = api.post("/v1/sandboxes", json={}).json()
        sandbox = made["sandbox"]["id"]
        assert (
            api.get(f"/v1/operations/{made['operation']['id']}", params={"wait": "55s"}).json()["state"] == "succeeded"
        )
        words = ["sh", "-c", "sleep 12; echo done"]
        answer = api.post(f"/v1/sandboxes/{sandbox}/commands", json={"command": words, "detach": True})
        assert answer.status_code == 201, answer.text
        command = answer.json()["command"]["id"]
        before = machine_pid(sandbox)

        parts = json.loads(deployment.space("status", "--json").stdout)["parts"]
        worker = next(p["pid"] for p in parts if p["name"] == "worker")
        subprocess.run(["kill", "-9", str(worker)], check=True)

        deadline = time.monotonic() + 60
        while (shown := api.get(f"/v1/sandboxes/{sandbox}/commands/{command}").json())["state"] != "exited":
            assert time.monotonic() < deadline, (shown, api.get(f"/v1/sandboxes/{sandbox}").json())
            time.sleep(0.3)
        assert shown["exit_code"] == 0, shown
        assert machine_pid(sandbox) == before
        assert api.get(f"/v1/sandboxes/{sandbox}").json()["state"] == "running"
        assert deployment.space("run", "--", "true").returncode == 0
        gone = api.delete(f"/v1/sandboxes/{sandbox}").json()
        assert (
            api.get(f"/v1/operations/{gone['operation']['id']}", params={"wait": "30s"}).json()["state"] == "succeeded"
        )
