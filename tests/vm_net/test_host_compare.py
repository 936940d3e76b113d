"""The comparison of the host sees what it should, and quickly."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from space.vm.net import Network

host: Any = sys.modules["host"]


async def test_a_namespace_and_a_process_left_are_told(network: Network, tmp_path: Path) -> None:
    before = host.HostState.capture([tmp_path], home=str(tmp_path))
    name = await network.acquire()
    (tmp_path / "crumb").touch()
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            lines = host.diff(before, host.HostState.capture([tmp_path], home=str(tmp_path)))
        finally:
            process.kill()
    assert f"left behind: namespace {name}" in lines
    assert f"left behind: file {tmp_path}/crumb" in lines
    assert any(line.endswith(f"{process.pid} sleep 60") for line in lines)
    await network.release(name)
    (tmp_path / "crumb").unlink()
    assert host.diff(before, host.HostState.capture([tmp_path], home=str(tmp_path))) == []


def test_a_capture_is_cheap() -> None:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        host.HostState.capture()
        times.append(time.perf_counter() - began)
    assert min(times) < 0.02
