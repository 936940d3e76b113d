"""The control group of one machine: version 2 where the host has it, else the version 1 hierarchies.

This is the limit that counts: it holds for the machine's process whatever the guest does.
"""

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from space.vm.base import MachineError

PARENT = "space"
CONTROLLERS = ("memory", "pids", "cpu")
PERIOD_US = 100_000  # the kernel's default period
# QEMU's threads: one a vCPU (at most 32), main, RCU, and at most 16 for disk I/O (qemu.py bounds the pool).
PIDS_MAX = 64
# The process's own memory beside the guest's: 64 MiB translation buffer, its heap and the kernel image while loading.
OVERHEAD_MIB = {"emulated": 256, "kvm": 96}
# Device emulation runs beside the vCPUs; without its quarter a one-vCPU guest is throttled by its own disk.
DEVICE_CPU = 0.25
REMOVE_TRIES = 200  # at 10 ms: a dying process holds its group until the kernel has freed its memory


@dataclass(frozen=True)
class Limits:
    memory_mib: int
    vcpus: int
    pids: int = PIDS_MAX


def _unified() -> bool:
    try:
        return "memory" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    except OSError:
        return False


def _v1_roots() -> dict[str, Path]:
    """Where each version 1 controller is mounted (some hosts mount cpu together with cpuacct)."""
    roots: dict[str, Path] = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _source, where, kind, options, *_ = line.split(" ")
        if kind == "cgroup":
            for controller in set(options.split(",")) & set(CONTROLLERS):
                roots.setdefault(controller, Path(where))
    return roots


def _values_v2(limits: Limits) -> dict[str, str]:
    quota = int((limits.vcpus + DEVICE_CPU) * PERIOD_US)
    return {
        "memory.max": str(limits.memory_mib << 20),
        "memory.swap.max": "0",
        "pids.max": str(limits.pids),
        "cpu.max": f"{quota} {PERIOD_US}",
    }


def _values_v1(limits: Limits) -> dict[str, dict[str, str]]:
    size = str(limits.memory_mib << 20)
    quota = str(int((limits.vcpus + DEVICE_CPU) * PERIOD_US))
    return {
        "memory": {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size},
        "pids": {"pids.max": str(limits.pids)},
        "cpu": {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota},
    }


# Kernels built or booted without swap accounting have no such files; there is then nothing to limit.
OPTIONAL = frozenset({"memory.swap.max", "memory.memsw.limit_in_bytes"})


def _apply(folder: Path, values: dict[str, str]) -> None:
    for name, value in values.items():
        path = folder / name
        if name in OPTIONAL and not path.exists():
            continue
        path.write_text(value)


def folders(machine_id: str) -> list[Path]:
    """The folders of this machine's group, whether or not they exist."""
    if _unified():
        return [Path("/sys/fs/cgroup") / PARENT / machine_id]
    return [root / PARENT / machine_id for root in _v1_roots().values()]


def create(machine_id: str, limits: Limits) -> list[Path]:
    """Make the group and set its limits; a machine is never started without all of them."""
    try:
        if _unified():
            return [_create_v2(machine_id, limits)]
        return _create_v1(machine_id, limits)
    except OSError as error:
        raise MachineError("jail", f"the control group cannot be made: {error}") from error


def _create_v2(machine_id: str, limits: Limits) -> Path:
    parent = Path("/sys/fs/cgroup") / PARENT
    parent.mkdir(exist_ok=True)
    enable = " ".join(f"+{name}" for name in CONTROLLERS)
    (parent.parent / "cgroup.subtree_control").write_text(enable)
    (parent / "cgroup.subtree_control").write_text(enable)
    folder = parent / machine_id
    folder.mkdir(exist_ok=True)
    _apply(folder, _values_v2(limits))
    return folder


def _create_v1(machine_id: str, limits: Limits) -> list[Path]:
    roots = _v1_roots()
    missing = sorted(set(CONTROLLERS) - set(roots))
    if missing:
        raise MachineError("jail", f"this host has no control group controller for: {', '.join(missing)}")
    made = []
    for controller, values in _values_v1(limits).items():
        folder = roots[controller] / PARENT / machine_id
        folder.mkdir(parents=True, exist_ok=True)
        _apply(folder, values)
        made.append(folder)
    return made


def pids(group: list[Path]) -> set[int]:
    """Every process in the group."""
    found: set[int] = set()
    for folder in group:
        with contextlib.suppress(OSError):
            found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
    return found - {0}


async def remove(group: list[Path]) -> None:
    """Kill what is in the group and remove it; a group already gone is fine. Raises MachineError if it stays."""
    for _ in range(REMOVE_TRIES):
        for pid in pids(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        left = [folder for folder in group if not _rmdir(folder)]
        if not left:
            return
        await asyncio.sleep(0.01)
    raise MachineError("kill", f"control group {left[0]} stays busy: processes {sorted(pids(group))}")


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
