#!/usr/bin/env python3
"""A first sandbox, with the standard library only: create, wait, execute, check, inspect, delete.

Reads SPACE_API_URL, SPACE_DATA_PLANE_URL, SPACE_API_TOKEN (an API key) and SPACE_TEMPLATE.
"""

import base64
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

API_URL = os.environ.get("SPACE_API_URL", "http://127.0.0.1:7400").rstrip("/")
DATA_PLANE_URL = os.environ.get("SPACE_DATA_PLANE_URL", "").rstrip("/")
API_TOKEN = os.environ.get("SPACE_API_TOKEN", "")
TEMPLATE = os.environ.get("SPACE_TEMPLATE", "seed:latest")

COMMAND: dict[str, Any] = {
    "command": ["python3", "-c", "import os; print(os.environ['GREETING'])"],
    "cwd": "/tmp",
    "env": {"GREETING": "Hello from SPACE"},
    "timeout": "30s",
}

WAIT_S = 120  # a machine in software emulation boots in seconds; a loaded host takes longer


class Failed(Exception):
    """Something did not work; the text says what, for a person."""


def request(method: str, url: str, token: str, body: dict[str, Any] | None = None) -> Any:
    """Send one request and give the open response; an error answer becomes its message and hint."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        return urllib.request.urlopen(
            urllib.request.Request(url, data=data, headers=headers, method=method),
            timeout=WAIT_S,
        )
    except urllib.error.HTTPError as error:
        with error:
            raise Failed(explain(method, url, error.code, error.read())) from None
    except OSError as error:
        raise Failed(f"{method} {url} got no answer: {error}. Is SPACE running? `space status` tells.") from None


def explain(method: str, url: str, status: int, body: bytes) -> str:
    """Say what an error answer says."""
    try:
        problem = json.loads(body)
        parts = [f"{problem['code']}: {problem['detail']}", problem.get("hint"), f"request {problem.get('request_id')}"]
    except (ValueError, KeyError, TypeError):
        parts = [body[:200].decode(errors="replace")]
    return f"{method} {url} answered {status}: " + " | ".join(str(part) for part in parts if part)


def call(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Call the API."""
    with request(method, API_URL + path, API_TOKEN, body) as response:
        return json.loads(response.read())


def attach(attachment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Start the command by attaching to it, and give its events."""
    url = attachment["url"]
    if DATA_PLANE_URL:  # the data plane as this host reaches it
        base, path = urlsplit(DATA_PLANE_URL), urlsplit(url)
        url = urlunsplit((base.scheme, base.netloc, path.path, path.query, ""))
    with request("POST", url, attachment["token"]) as response:
        for line in response:
            yield json.loads(line)


def wait_until_running(sandbox: str, operation: str) -> None:
    """Wait for the operation that creates the sandbox."""
    for _ in range(WAIT_S // 30):
        seen = call("GET", f"/v1/operations/{operation}?wait=30s")
        if seen["state"] == "succeeded":
            return
        if seen["state"] == "failed":
            raise Failed(f"the sandbox {sandbox} could not be made: {json.dumps(seen.get('error'))}")
    raise Failed(f"the sandbox {sandbox} was not running after {WAIT_S} s")


def execute(sandbox: str) -> dict[str, Any]:
    """Run COMMAND, show its output and give its last event."""
    made = call("POST", f"/v1/sandboxes/{sandbox}/commands", COMMAND)
    ended: dict[str, Any] | None = None
    for event in attach(made["attachment"]):
        if event["type"] in ("stdout", "stderr"):
            target = sys.stdout if event["type"] == "stdout" else sys.stderr
            target.buffer.write(base64.b64decode(event["data"]))
            target.flush()
        elif event["type"] == "output_dropped":
            print(f"({event['bytes']} bytes of output were dropped)", file=sys.stderr)
        elif event["type"] == "start_failed":
            raise Failed(f"the command could not be started: {event['code']} {event.get('path')}")
        elif event["type"] == "process_exited":
            ended = event
    if ended is None:
        raise Failed("the stream ended before the command did; nothing is known about its exit")
    return ended


def check(ended: dict[str, Any]) -> None:
    """Say whether the command succeeded."""
    if ended.get("signal"):
        raise Failed(f"the command was ended by {ended['signal']} ({ended.get('reason')})")
    if ended["exit_code"] != 0:
        raise Failed(f"the command exited with {ended['exit_code']}")
    print("Command completed successfully")


def step(number: int, text: str) -> None:
    """Tell a step, beside the output of the command."""
    print(f"[{number}/6] {text}", file=sys.stderr, flush=True)


def run() -> None:
    """Do the six steps."""
    if not API_TOKEN:
        raise Failed("SPACE_API_TOKEN is not set; `space key create` prints a key once")
    step(1, f"create a sandbox from {TEMPLATE}")
    made = call("POST", "/v1/sandboxes", {"template": TEMPLATE, "name": "first-sandbox", "timeout": "5m"})
    sandbox = made["sandbox"]["id"]
    try:
        step(2, f"wait until {sandbox} runs")
        wait_until_running(sandbox, made["operation"]["id"])
        step(3, f"execute {COMMAND['command']}")
        ended = execute(sandbox)
        step(4, "check how it ended")
        check(ended)
        step(5, "inspect the sandbox")
        seen = call("GET", f"/v1/sandboxes/{sandbox}")
        print(
            f"      state {seen['state']}, isolation {seen.get('isolation')}, node {seen.get('node')}", file=sys.stderr
        )
    finally:
        step(6, f"delete {sandbox}")
        call("DELETE", f"/v1/sandboxes/{sandbox}")


def main() -> int:
    """Run, and tell a failure in one line."""
    try:
        run()
    except Failed as error:
        print(f"first_sandbox: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
