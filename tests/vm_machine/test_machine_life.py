"""A machine's life on real parts: boot, confinement, end, removal, adoption."""

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from space.vm import cgroup
from space.vm.base import MachineError
from space.vm.console import RATE, RING
from space.vm.qemu import QemuDriver


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


async def test_boots_confined_and_kill_leaves_nothing(bench: Any) -> None:
    machine = await bench.booted()
    said = machine.console_ring.tail()
    assert b"disk 131072 macs 02:53:50:00:00:01 02:53:50:00:00:02" in said

    pid = machine.pid
    status = _status(pid)
    uid = str(bench.spec.uid)
    assert status["Uid"].split() == [uid] * 4
    assert status["Gid"].split() == [uid] * 4
    assert status["Groups"] == ""
    for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb"):
        assert int(status[f"Cap{kind}"], 16) == 0, kind
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert status["NSpid"].split() == [str(pid), "1"]

    assert os.listdir(f"/proc/{pid}/root/") == []
    assert len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines()) == 1
    for kind in ("mnt", "pid", "ipc", "uts", "net"):
        assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"), kind
    netns = os.stat(f"/run/netns/{bench.spec.netns}").st_ino
    assert os.stat(f"/proc/{pid}/ns/net").st_ino == netns

    assert all(pid in cgroup.pids([folder]) for folder in cgroup.folders(machine.id))
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max core file size        0                    0" in limits

    allowed = ("socket:", "anon_inode:", "pipe:", "/dev/net/tun", "/null", "/urandom", str(bench.spec.disk))
    held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert [link for link in held if not link.startswith(allowed)] == []

    await machine.pause()
    assert await machine.status() == "paused"
    await machine.resume()
    assert await machine.status() == "running"
    await machine.kill()
    how = await machine.wait()
    assert (how.reason, how.signal) == ("host-signal", 9)
    assert bench.left(machine) == []


@pytest.mark.parametrize(
    ("word", "reason"), [("test.off", "guest-shutdown"), ("test.reset", "guest-reset"), ("test.panic", "guest-panic")]
)
async def test_wait_says_how_the_guest_ended(bench: Any, word: str, reason: str) -> None:
    machine = await bench.booted(word)
    how = await asyncio.wait_for(machine.wait(), 60)
    assert (how.reason, how.code) == (reason, 0)
    await machine.kill()
    assert bench.left(machine) == []


async def test_a_second_driver_adopts_from_the_record(bench: Any) -> None:
    machine = await bench.booted()
    record = json.loads(json.dumps(machine.record))
    await bench.driver.close()
    assert Path(f"/proc/{record['pid']}").exists()

    second = await QemuDriver.open(bench.run_dir, "emulated")
    assert second.found() == [record]
    adopted = await second.adopt(record)
    assert await adopted.status() == "running"
    await adopted.kill()
    assert (await adopted.wait()).reason == "host-signal"
    assert bench.left(machine) == []
    with pytest.raises(MachineError, match="gone"):
        await second.adopt(record)
    await second.close()


async def test_a_pid_of_another_process_is_not_adopted(bench: Any) -> None:
    record = {"id": "x", "pid": os.getpid(), "started": 1, "uid": 0, "folder": str(bench.run_dir / "machines/x")}
    with pytest.raises(MachineError, match="another one"):
        await bench.driver.adopt(record)
    with pytest.raises(MachineError, match="not a machine's"):
        await bench.driver.adopt({"id": "x"})


async def test_a_console_flood_is_bounded(bench: Any) -> None:
    machine = await bench.booted("test.flood")
    before, start = machine.console_ring.seen, time.monotonic()
    await asyncio.sleep(3)
    read = machine.console_ring.seen - before
    assert read > 0
    assert read <= RATE * (time.monotonic() - start + 1)
    assert len(await machine.console(10 * RING)) <= RING
    await machine.kill()
    assert bench.left(machine) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kernel": Path("/nonexistent")}, "not a file"),
        ({"id": "../x"}, "cannot name"),
        ({"uid": 0}, "uid 0"),
        ({"netns": "no-such-namespace"}, "no-such-namespace"),
    ],
)
async def test_a_refused_start_leaves_nothing(bench: Any, change: dict[str, Any], says: str) -> None:
    spec = replace(bench.spec, **change)
    with pytest.raises(MachineError, match=says):
        await bench.driver.start(spec)
    assert bench.driver.found() == []
    assert [folder for folder in cgroup.folders(bench.spec.id) if folder.exists()] == []


async def test_a_kernel_that_is_none_gives_qemus_own_words(bench: Any, tmp_path: Path) -> None:
    bad = tmp_path / "kernel"
    bad.write_bytes(b"not a kernel" * 100)
    with pytest.raises(MachineError) as caught:
        await bench.driver.start(replace(bench.spec, kernel=bad))
    assert "qemu: " in caught.value.log
    assert bench.driver.found() == []
