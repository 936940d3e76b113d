"""Attaching: every byte and every exit as it was, at the client's pace, and never more than was seen."""

import base64
import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from tests.dataplane.conftest import World
else:
    World = Any


def output(events: list[dict[str, Any]], stream: str = "stdout") -> bytes:
    return b"".join(base64.b64decode(e["data"]) for e in events if e["type"] == stream)


def exited(events: list[dict[str, Any]]) -> dict[str, Any]:
    found = [e for e in events if e["type"] == "process_exited"]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_exit_codes(world: World, code: int) -> None:
    events = world.run("/bin/sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert events[0]["type"] == "process_started"
    assert (output(events), output(events, "stderr")) == (b"out\n", b"err\n")
    assert exited(events)["exit_code"] == code
    assert events[-1]["type"] == "stream_closed"


def test_signal_is_reported_as_a_signal(world: World) -> None:
    assert exited(world.run("/bin/sh", "-c", "kill -KILL $$"))["signal"] == "SIGKILL"


def test_any_byte_arrives(world: World) -> None:
    every = bytes(range(256)) * 3
    events = world.run("/usr/bin/env", "python3", "-c", "import os; os.write(1, bytes(range(256)) * 3)")
    assert output(events) == every


def test_fifty_megabytes_arrive_whole(world: World) -> None:
    script = "import os\nb=os.urandom(1<<20)\nfor i in range(50): os.write(1, b[i:]+b[:i])\nimport hashlib,sys"
    script += "\nh=hashlib.sha256()\nfor i in range(50): h.update(b[i:]+b[:i])\nsys.stderr.write(h.hexdigest())"
    script = script.replace("os.write(1, b[i:]+b[:i])", "sys.stdout.buffer.write(b[i:]+b[:i])")
    events = world.run("/usr/bin/env", "python3", "-c", "import sys,os\n" + script)
    data = output(events)
    assert len(data) == 50 << 20
    assert hashlib.sha256(data).hexdigest().encode() == output(events, "stderr")


def test_slow_reader_holds_memory_bounded(world: World) -> None:
    cmd, headers = world.command("/bin/sh", "-c", "head -c 200000000 /dev/zero")
    before = rss_kib(world.pid)
    with httpx.stream("POST", world.attach_url(cmd), headers=headers, timeout=30) as answer:
        chunks = answer.iter_raw(1024)
        next(chunks)
        time.sleep(4)
        assert rss_kib(world.pid) - before < 16 * 1024


def rss_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_reattach_with_a_cursor_loses_nothing(world: World) -> None:
    cmd, headers = world.command("/bin/sh", "-c", "for i in $(seq 40); do echo line $i; sleep 0.03; done")
    first = []
    with httpx.stream("POST", world.attach_url(cmd), headers=headers, timeout=30) as answer:
        for line in answer.iter_lines():
            first.append(json.loads(line))
            if len(first) == 5:
                break
    rest = world.follow(cmd, headers, "GET", after=first[-1]["cursor"])
    assert output(first + rest) == "".join(f"line {i}\n" for i in range(1, 41)).encode()


def test_follow_never_starts(world: World, tmp_path: Path) -> None:
    cmd, headers = world.command("/usr/bin/touch", str(tmp_path / "started"))
    answer = httpx.get(world.attach_url(cmd), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "state_conflict")
    assert not (tmp_path / "started").exists()


def test_start_failures_name_what_is_missing(world: World) -> None:
    events = world.run("/nonexistent/program")
    assert [(e["type"], e["code"], e["path"]) for e in events] == [
        ("start_failed", "executable_not_found", "/nonexistent/program")
    ]
    events = world.run("/bin/true", cwd="/nonexistent/folder")
    assert [(e["type"], e["code"]) for e in events] == [("start_failed", "cwd_not_found")]


def test_two_attaches_start_one_process(world: World, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    cmd, headers = world.command("/bin/sh", "-c", f"echo $$ >> {mark}; sleep 0.5; echo done")
    results: list[list[dict[str, Any]]] = []
    threads = [threading.Thread(target=lambda: results.append(world.follow(cmd, headers))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(mark.read_text().splitlines()) == 1
    assert [output(r) for r in results] == [b"done\n"] * 2


def test_hanging_up_leaves_the_command_running(world: World, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    cmd, headers = world.command("/bin/sh", "-c", f"echo go; sleep 1; echo alive > {mark}")
    with httpx.stream("POST", world.attach_url(cmd), headers=headers, timeout=30) as answer:
        next(answer.iter_lines())
    deadline = time.monotonic() + 10
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert mark.exists()
    assert exited(world.follow(cmd, headers, "GET"))["exit_code"] == 0


def test_stdin_and_signal(world: World) -> None:
    cmd, headers = world.command("/bin/cat", stdin=True)
    base = f"{world.url}/v1/commands/{cmd}"
    assert httpx.post(base + "/start", headers=headers).status_code == 200
    sent = os.urandom(300_000)
    answer = httpx.post(base + "/stdin?close=true", headers=headers, content=sent, timeout=30)
    assert answer.json() == {"bytes": len(sent), "closed": True}
    assert output(world.follow(cmd, headers, "GET")) == sent
    cmd, headers = world.command("/bin/sleep", "60")
    base = f"{world.url}/v1/commands/{cmd}"
    assert httpx.post(base + "/start", headers=headers).status_code == 200
    sent_signal = httpx.post(base + "/signal", headers=headers, json={"signal": "SIGTERM"})
    assert sent_signal.status_code == 200, sent_signal.text
    assert exited(world.follow(cmd, headers, "GET"))["signal"] == "SIGTERM"


def test_states_are_reported_to_the_worker(world: World) -> None:
    world.run("/bin/sh", "-c", "exit 3")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not any(r["state"] == "exited" for r in world.worker.reports):
        time.sleep(0.05)
    assert next(r for r in world.worker.reports if r["state"] == "exited")["exit_code"] == 3


def test_tokens(world: World) -> None:
    cmd, headers = world.command("/bin/true")
    cases = [
        ({}, 401, "unauthenticated"),
        ({"Authorization": "Bearer space_" + "0" * 40}, 401, "wrong_token_kind"),
        (world.headers(cmd, ttl_s=-60), 401, "unauthenticated"),
        (world.headers("cmd" + "b" * 24), 403, "forbidden"),
        (world.sandbox_headers("processes"), 401, "wrong_token_kind"),
    ]
    for given, status, code in cases:
        answer = httpx.post(world.attach_url(cmd), headers=given)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.headers["content-type"] == "application/problem+json"
    url = f"{world.url}/v1/sandboxes/sbx{'a' * 24}/processes"
    assert httpx.get(url, headers=headers).json()["code"] == "wrong_token_kind"
    assert httpx.get(url, headers=world.sandbox_headers("processes")).json()["items"]


def test_worker_gone_is_guest_unreachable(world: World) -> None:
    cmd, headers = world.command("/bin/true")
    world.worker.stop()
    answer = httpx.post(world.attach_url(cmd), headers=headers, timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (503, "guest_unreachable")
    assert answer.json()["hint"]


def test_stopped_agent_meets_the_deadline(world: World) -> None:
    cmd, headers = world.command("/bin/true")
    os.kill(world.agent_pid, signal.SIGSTOP)
    answer = httpx.post(world.attach_url(cmd), headers=headers, timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (503, "guest_unreachable")


def test_a_broken_guest_stream_is_no_exit(world: World) -> None:
    cmd, headers = world.command("/bin/sh", "-c", "echo go; exec sleep 60")
    with httpx.stream("POST", world.attach_url(cmd), headers=headers, timeout=30) as answer:
        lines = answer.iter_lines()
        started = json.loads(next(lines))
        os.kill(world.agent_pid, signal.SIGKILL)
        events = [json.loads(line) for line in lines]
    os.kill(started["pid"], signal.SIGKILL)
    assert events[-1]["type"] == "stream_lost"
    assert not any(e["type"] == "process_exited" for e in events)
