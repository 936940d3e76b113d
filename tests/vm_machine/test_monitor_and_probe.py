"""A monitor that lies is refused; the probe says no to kvm where it does not boot a guest, and remembers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from space.vm import probe, tsc
from space.vm.base import MachineError
from space.vm.qmp import EVENTS_PER_S, LINE_MAX, Qmp

GREETING = b'{"QMP": {}}\n'


async def _talk(path: Path, after: bytes) -> Qmp:
    """Connect to a monitor that greets, accepts the capabilities and then says `after`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        await reader.readline()
        writer.write(b'{"return": {}}\n' + after)
        await reader.readline()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        qmp = await Qmp.connect(path, lambda *_: None)
        async with asyncio.timeout(10):
            await qmp.closed.wait()
    finally:
        server.close()
    return qmp


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{]\n", "not JSON"),
        (b"[1]\n", "not an object"),
        (b"[" * 60000 + b"\n", "not JSON"),
        (b'{"event": 7}\n', "another shape"),
        (b'{"event": "X", "data": 3}\n', "another shape"),
        (b'{"return": 1}\n', "no question"),
        (b"x" * (LINE_MAX + 1) + b"\n", "longer than"),
        (b'{"event": "RTC_CHANGE"}\n' * (EVENTS_PER_S * 3), "events in a second"),
    ],
)
async def test_a_malformed_monitor_is_refused(tmp_path: Path, line: bytes, says: str) -> None:
    qmp = await _talk(tmp_path / "qmp", line)
    with pytest.raises(MachineError, match=says):
        await qmp.command("cont")
    await qmp.close()


async def test_a_monitor_without_greeting_is_refused(tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), tmp_path / "qmp")
    with pytest.raises(MachineError, match="no greeting"):
        await Qmp.connect(tmp_path / "qmp", lambda *_: None)
    server.close()


def test_the_tsc_rate_is_plausible_and_kept() -> None:
    assert 500_000 < tsc.khz() < 8_000_000
    assert tsc.khz() == tsc.khz()


@pytest.mark.skipif(probe.virtualisation(probe.cpu_flags()), reason="this CPU has vmx or svm")
async def test_the_probe_says_no_to_kvm_and_remembers(guest: Any, tmp_path: Path) -> None:
    run, cache = tmp_path / "run", tmp_path / "cache"
    choose: Callable[[str], Awaitable[object]] = lambda accel: probe.choose_driver(  # noqa: E731
        "auto", accel, guest.kernel, guest.initramfs, cache, run_dir=run
    )
    driver = await choose("auto")
    assert driver.isolation == "emulated"  # type: ignore[attr-defined]
    stored = json.loads((cache / "kvm-probe.json").read_text())
    assert stored["kvm"] is False
    assert stored["why"]
    assert list((run / "machines").glob("*")) == []

    (cache / "kvm-probe.json").write_text(json.dumps(stored | {"why": "remembered"}))
    with pytest.raises(MachineError, match=r"remembered.*SPACE_ACCEL=tcg"):
        await choose("kvm")
    (cache / "kvm-probe.json").write_text(json.dumps(stored | {"key": "another boot", "why": "stale"}))
    await choose("auto")
    assert json.loads((cache / "kvm-probe.json").read_text())["why"] != "stale"


async def test_vmx_with_a_failing_kvm_is_an_error(guest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags are the only thing pretended: kvm really fails here."""
    monkeypatch.setattr(probe, "cpu_flags", lambda: {"vmx"})
    monkeypatch.setattr(probe, "DEADLINE_S", 1.0)
    if (await probe.try_kvm(guest.kernel, guest.initramfs, tmp_path / "run")).kvm:
        pytest.skip("kvm works on this host")
    with pytest.raises(MachineError, match="does not boot"):
        await probe.choose_driver("auto", "auto", guest.kernel, guest.initramfs, tmp_path, run_dir=tmp_path / "run")


def test_flags_are_read() -> None:
    assert probe.virtualisation(probe.cpu_flags("flags\t\t: fpu vmx\n"))
    assert not probe.virtualisation(probe.cpu_flags("flags : fpu\n"))
