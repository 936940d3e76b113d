"""Which driver this host can really run: settled by booting a guest, remembered for this boot of the host.

A present /dev/kvm proves nothing: there are hosts where it opens and answers and where no stock kernel ever boots. On a
CPU with vmx or svm a failing kvm is an error and never a silent change to emulation.
"""

import asyncio
import json
import os
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from space.vm import qemu_args
from space.vm.base import MachineError, MachineSpec
from space.vm.qemu import OpenTaps, QemuDriver

DEADLINE_S = 5.0  # with kvm a boot to userland takes well under a second
MARKER = b"space-agent"  # the agent's first words on the console: userland was reached
PROBE_UID = 65533  # no sandbox's, and no user's on Debian
MEMORY_MIB = 256
DISK_BYTES = 1 << 20


@dataclass(frozen=True)
class Answer:
    """Whether kvm boots a guest here, and why not."""

    kvm: bool
    why: str


def cpu_flags(text: str | None = None) -> set[str]:
    """The first processor's flags."""
    for line in (text or Path("/proc/cpuinfo").read_text()).splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def virtualisation(flags: set[str]) -> bool:
    return bool(flags & {"vmx", "svm"})


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _key(version: str, kernel: Path) -> str:
    return f"{boot_id()} {version} {kernel.resolve()}"


def remembered(path: Path, key: str) -> Answer | None:
    """The stored answer, if it is for this host boot, this QEMU and this kernel."""
    try:
        stored = json.loads(path.read_text())
        if stored["key"] == key:
            return Answer(bool(stored["kvm"]), str(stored["why"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def remember(path: Path, key: str, answer: Answer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({"key": key, "kvm": answer.kvm, "why": answer.why}))
    fresh.rename(path)


async def try_kvm(kernel: Path, initramfs: Path, run_dir: Path, marker: bytes = MARKER) -> Answer:
    """Boot a guest with kvm; the answer says why not."""
    if not await asyncio.to_thread(Path("/dev/kvm").exists):
        return Answer(False, "there is no /dev/kvm")
    driver = await QemuDriver.open(run_dir, "kvm")
    with tempfile.NamedTemporaryFile(prefix="space-probe-") as disk:
        os.truncate(disk.name, DISK_BYTES)
        name = f"probe-{uuid.uuid4().hex[:12]}"
        spec = MachineSpec(name, 1, MEMORY_MIB, kernel, initramfs, Path(disk.name), "", PROBE_UID)
        try:
            machine = await driver.start(spec)
            try:
                if await machine.console_ring.find(marker, DEADLINE_S):
                    return Answer(True, "")
                said = machine.console_ring.tail(200).decode(errors="replace")
                return Answer(False, f"a guest did not reach userland in {DEADLINE_S:g} s; its console: {said!r}")
            finally:
                await machine.kill()
        except MachineError as error:
            return Answer(False, f"{error}; {error.log[-400:]}".strip("; \n"))
        finally:
            await driver.close()


async def kvm_works(kernel: Path, initramfs: Path, cache_dir: Path, run_dir: Path, marker: bytes = MARKER) -> Answer:
    """`try_kvm`, remembered."""
    path = cache_dir / "kvm-probe.json"
    key = _key(await qemu_args.version(), kernel)
    answer = await asyncio.to_thread(remembered, path, key)
    if answer is None:
        answer = await try_kvm(kernel, initramfs, run_dir, marker)
        await asyncio.to_thread(remember, path, key, answer)
    return answer


async def choose_driver(
    vmm: str,
    accel: str,
    kernel: Path,
    initramfs: Path,
    cache_dir: Path,
    *,
    run_dir: Path,
    open_taps: OpenTaps | None = None,
) -> QemuDriver:
    """The driver for `vmm` (auto, qemu) and `accel` (auto, kvm, tcg); MachineError with the reason if none may run.

    Firecracker is not here yet, so `auto` means QEMU.
    """
    if vmm not in ("auto", "qemu"):
        raise MachineError("probe", f"no driver for SPACE_VMM={vmm}; this version has: qemu")
    if accel not in ("auto", "kvm", "tcg"):
        raise MachineError("probe", f"SPACE_ACCEL={accel} is none of auto, kvm, tcg")
    if accel == "tcg":
        return await QemuDriver.open(run_dir, "emulated", open_taps)
    answer = await kvm_works(kernel, initramfs, cache_dir, run_dir)
    if answer.kvm:
        return await QemuDriver.open(run_dir, "kvm", open_taps)
    if accel == "kvm" or virtualisation(cpu_flags()):
        hint = "set SPACE_ACCEL=tcg to run in emulation, which promises no isolation"
        raise MachineError("probe", f"kvm does not boot a guest on this host: {answer.why}; {hint}")
    return await QemuDriver.open(run_dir, "emulated", open_taps)
