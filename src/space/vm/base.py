"""What a machine and its driver are, whichever program runs it.

A driver starts machines and finds them again; a machine outlives the process that holds its object. `Machine.record` is
plain JSON and is all that `Driver.adopt` needs, so a worker may die and go on.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Isolation = Literal["kvm", "emulated"]
Record = dict[str, Any]

# Why a machine ended: `guest-*` the guest did itself, `host-*` was done to it, `lost` is a machine whose
# process ended while nobody listened, or ended without saying why.
ExitReason = Literal["guest-shutdown", "guest-reset", "guest-panic", "host-quit", "host-signal", "host-error", "lost"]
Phase = Literal["kernel", "spawner", "jail", "start", "monitor", "empty-root", "adopt", "control", "kill", "probe"]


@dataclass(frozen=True)
class MachineSpec:
    """One machine to start. All paths are the host's; the machine's process sees descriptors or read-only binds."""

    id: str
    vcpus: int
    memory_mib: int
    kernel: Path
    initramfs: Path
    disk: Path
    netns: str  # a name under /run/netns; empty: no network device and a namespace of its own with nothing in it
    uid: int  # unique among the machines of this node; also used as gid
    boot_args: str = ""
    taps: tuple[int, int] | None = None  # (egress, control); the driver duplicates them, the caller closes its own
    disk_write_mib_s: int | None = None  # None: not limited


@dataclass(frozen=True)
class ExitInfo:
    """How a machine ended. `code` is the process's exit status, None when it was not this process's to wait for."""

    code: int | None
    reason: ExitReason
    signal: int | None = None


class MachineError(Exception):
    """A machine could not be started, found or controlled. `log` is what its program said, bounded."""

    def __init__(self, phase: Phase, message: str, log: str = "") -> None:
        super().__init__(f"{phase}: {message}")
        self.phase = phase
        self.message = message
        self.log = log


class Machine(Protocol):
    """A running machine."""

    @property
    def id(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def record(self) -> Record: ...

    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def kill(self) -> None:
        """End the machine and remove its process, cgroup, sockets and jail folder; returns when they are gone."""

    async def wait(self) -> ExitInfo: ...
    async def console(self, limit: int = 65536) -> bytes:
        """The last `limit` bytes at most of what the guest wrote to its serial port."""
        ...


class Driver(Protocol):
    """A way to run machines on this host."""

    @property
    def name(self) -> str: ...
    @property
    def isolation(self) -> Isolation: ...
    @property
    def version(self) -> str: ...

    async def start(self, spec: MachineSpec) -> Machine: ...
    async def adopt(self, record: Record) -> Machine: ...
    async def close(self) -> None:
        """Let go of the machines without ending them."""
