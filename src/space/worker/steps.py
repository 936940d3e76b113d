"""The steps that make a sandbox's machine, in order, each with its undo; the record is written before each."""

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from space.base.logs import get_logger
from space.base.tasks import spawn
from space.guest.client import AdoptRequest, GuestClient
from space.guest.errors import GuestError, GuestProtocolError, GuestUnreachable
from space.vm.base import Machine, MachineError, MachineSpec
from space.worker.parts import Parts
from space.worker.records import Sandbox

HEALTH_TRY_S = 2.0  # one attempt; a booting guest drops packets, so a new connection beats waiting on an old one
HEALTH_PAUSE_S = 0.05  # short beside the quickest boot (2 s), long enough not to take its CPU
ADOPT_S = 15.0  # milliseconds of work; on a loaded host with emulation times a thousand
ENTROPY_BYTES = 64  # twice what the kernel's generator is keyed with
CONSOLE_TAIL = 4096


class StepFailed(Exception):
    """A step failed: where and why, for a person."""

    def __init__(self, phase: str, reason: str) -> None:
        super().__init__(f"{phase}: {reason}")
        self.phase = phase
        self.reason = reason


@dataclass
class Work:
    """One sandbox being made or taken down."""

    parts: Parts
    record: Sandbox
    machine: Machine | None = None

    @property
    def id(self) -> str:
        return self.record.assign.sandbox

    @property
    def template(self) -> Path:
        digest = self.record.assign.spec.digest.removeprefix("sha256:")
        return self.parts.store.pool / "templates" / digest

    def guest(self) -> GuestClient:
        """A client of the machine's agent."""
        netns = self.record.netns
        assert netns is not None
        return GuestClient(lambda: self.parts.network.dial(netns, HEALTH_TRY_S))


async def _take_uid(work: Work) -> None:
    work.record.uid = work.parts.slots.take()


async def _give_uid(work: Work) -> None:
    if work.record.uid is not None:
        work.parts.slots.give(work.record.uid)
        work.record.uid = None


async def _network(work: Work) -> None:
    work.record.netns = await work.parts.network.acquire()


async def _no_network(work: Work) -> None:
    if work.record.netns is not None:
        await work.parts.network.release(work.record.netns)
        work.record.netns = None  # the name may be another's from now on


async def _disk(work: Work) -> None:
    spec = work.record.assign.spec
    disk = await work.parts.store.clone(work.template, work.id, spec.disk_mib)
    assert work.record.uid is not None
    # The machine gets a descriptor; the owner is for the accounts of the host's disk use.
    await asyncio.to_thread(os.chown, disk, work.record.uid, work.record.uid)


async def _no_disk(work: Work) -> None:
    await work.parts.store.delete(work.id)


async def _start(work: Work) -> None:
    spec, record = work.record.assign.spec, work.record
    assert record.netns is not None
    assert record.uid is not None
    taps = await work.parts.network.taps(record.netns)
    try:
        work.machine = await work.parts.driver.start(
            MachineSpec(
                id=work.id, vcpus=spec.vcpus, memory_mib=spec.memory_mib, kernel=work.template / "vmlinux",
                initramfs=work.template / "initramfs",
                disk=work.parts.store.pool / "sandboxes" / work.id / "rootfs.ext4",
                netns=record.netns, uid=record.uid, taps=taps,
            )
        )  # fmt: skip
    finally:
        for tap in taps:
            os.close(tap)
    record.machine = work.machine.record


async def _no_machine(work: Work) -> None:
    if work.machine is not None:
        await work.machine.kill()
        work.machine = None
    else:
        for record in work.parts.driver.found():
            if record.get("id") == work.id:
                await work.parts.driver.remove(record)


async def _boot(work: Work) -> None:
    """Wait for the agent's first answer, or for the machine's end."""
    assert work.machine is not None
    guest = work.guest()
    deadline = time.monotonic() + work.parts.boot_timeout
    ended = spawn(f"wait {work.id}", work.machine.wait())
    try:
        while True:
            try:
                await guest.health(HEALTH_TRY_S)
            except (GuestUnreachable, GuestError, GuestProtocolError, OSError, TimeoutError):
                if ended.done():
                    raise StepFailed("boot", f"the machine ended: {ended.result().reason}") from None
                if time.monotonic() > deadline:
                    raise StepFailed("boot", f"the agent did not answer in {work.parts.boot_timeout:g} s") from None
                await asyncio.wait({ended}, timeout=HEALTH_PAUSE_S)
            else:
                return
    finally:
        ended.cancel()


async def _adopt(work: Work) -> None:
    """Nobody is given a machine that did not prove that it took our entropy."""
    nonce = secrets.token_hex(16)
    request = AdoptRequest(
        entropy=os.urandom(ENTROPY_BYTES), time_unix_ns=time.time_ns(), hostname=work.record.assign.spec.hostname,
        machine_id=hashlib.sha256(f"machine-id:{work.id}".encode()).hexdigest()[:32], env=work.record.assign.spec.env,
        nonce=nonce,
    )  # fmt: skip
    reply = await work.guest().adopt(request, ADOPT_S)
    if reply.nonce != nonce or not reply.reseeded:
        raise StepFailed("adopt", "the guest did not prove that it reseeded")


async def _link_up(work: Work) -> None:
    assert work.record.netns is not None
    await work.parts.network.link_up(work.record.netns)


Act = Callable[[Work], Awaitable[None]]


async def _nothing(_work: Work) -> None:
    return


# In order; taking down goes through it backwards. Every undo is safe when its step was never begun.
STEPS: tuple[tuple[str, Act, Act], ...] = (
    ("uid", _take_uid, _give_uid),
    ("network", _network, _no_network),
    ("disk", _disk, _no_disk),
    ("machine", _start, _no_machine),
    ("boot", _boot, _nothing),
    ("adopt", _adopt, _nothing),
    ("link", _link_up, _nothing),
)


async def create(work: Work, told: Callable[[str], None]) -> None:
    """Take every step; StepFailed says which failed. What was done stays for `destroy`."""
    for phase, step, _undo in STEPS:
        told(phase)
        await work.parts.records.write(work.record)
        began = time.monotonic()
        try:
            await step(work)
        except StepFailed as error:
            raise StepFailed(error.phase, error.reason + await _last_words(work)) from error
        except MachineError as error:
            raise StepFailed(f"{phase}/{error.phase}", f"{error.message} {error.log[-500:]}".strip()) from error
        except Exception as error:
            raise StepFailed(phase, (str(error) or type(error).__name__) + await _last_words(work)) from error
        work.record.timings[phase] = round((time.monotonic() - began) * 1000, 1)
    work.record.state = "running"
    await work.parts.records.write(work.record)


async def _last_words(work: Work) -> str:
    if work.machine is None:
        return ""
    lines = (await work.machine.console(CONSOLE_TAIL)).decode(errors="replace").strip().splitlines()
    return f" (console: {lines[-1][:300]})" if lines else ""


async def destroy(work: Work) -> None:
    """Undo everything, last first, then forget the record; an undo that fails leaves the record for another try."""
    work.record.state = "deleting"
    await work.parts.records.write(work.record)
    for phase, _step, undo in reversed(STEPS):
        try:
            await undo(work)
        except Exception as error:
            get_logger().error("undo failed", action="undo_failed", sandbox=work.id, phase=phase, error=str(error))
            raise StepFailed(f"delete/{phase}", str(error) or type(error).__name__) from error
    work.parts.records.remove(work.id)
