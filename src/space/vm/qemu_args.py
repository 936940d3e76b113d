"""The command line of a QEMU `microvm` and the files its jail must show it. No machine is touched here but to look.

Descriptors are fixed by position: 3 monitor, 4 console, 5 disk, 6 egress tap, 7 control tap.
"""

import asyncio
import functools
import os
import re
import subprocess
from pathlib import Path

from space.vm.base import Isolation, MachineError, MachineSpec

BINARY = "/usr/bin/qemu-system-x86_64"
# Debian's paths; Ubuntu's are the same. A module's own libraries are followed too.
TCG_MODULE = "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so"
FIRMWARE = ("/usr/share/qemu", "/usr/share/seabios")
KERNEL_INSIDE, INITRAMFS_INSIDE = "/boot/vmlinux", "/boot/initramfs"
MAC_EGRESS, MAC_CONTROL = "02:53:50:00:00:01", "02:53:50:00:00:02"
TB_SIZE_MIB = 64  # the default is up to 1 GiB of translated code, outside the guest's memory
IO_THREADS = 16  # QEMU's default of 64 would run into the pids limit and end the machine
# `reboot=t`: a triple fault is the one reset that needs no device, and `-no-reboot` turns it into an exit.
BOOT_ARGS = (
    "console=ttyS0 reboot=t panic=1 quiet loglevel=1 rdinit=/init cryptomgr.notests random.trust_cpu=on "
    "i8042.noaux i8042.nomux i8042.dumbkbd"
)
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


def command_line(spec: MachineSpec, isolation: Isolation, tsc_khz: int | None) -> list[str]:
    """`tsc_khz` is needed in emulation and unused with kvm."""
    boot = f"{BOOT_ARGS} {spec.boot_args}".strip()
    if isolation == "emulated":
        accel, cpu, boot = f"tcg,tb-size={TB_SIZE_MIB}", "max", f"{boot} tsc_early_khz={tsc_khz}"
    else:
        accel, cpu = "kvm", "host"
    return [
        *(BINARY, "-name", spec.id, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-S"),
        *("-M", "microvm,x-option-roms=off", "-accel", accel, "-cpu", cpu),
        *("-smp", str(spec.vcpus), "-m", f"{spec.memory_mib}M"),
        *("-object", f"main-loop,id=main-loop,thread-pool-max={IO_THREADS}"),
        *("-kernel", KERNEL_INSIDE, "-initrd", INITRAMFS_INSIDE, "-append", boot),
        *("-chardev", "socket,id=qmp,fd=3,server=on,wait=off", "-mon", "chardev=qmp,mode=control"),
        *("-chardev", "socket,id=console,fd=4,server=on,wait=off", "-serial", "chardev:console"),
        *("-add-fd", "fd=5,set=1", *_disk(spec)),
        *(_network() if spec.netns else ()),
        *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-device,rng=rng"),
        *("-sandbox", SANDBOX),
    ]


def _network() -> list[str]:
    cards = (("egress", 6, MAC_EGRESS), ("control", 7, MAC_CONTROL))
    return [
        word
        for name, fd, mac in cards
        for word in (
            *("-netdev", f"tap,id={name},fd={fd},vhost=off"),
            *("-device", f"virtio-net-device,netdev={name},mac={mac}"),
        )
    ]


def _disk(spec: MachineSpec) -> list[str]:
    throttle = []
    drive = "root"
    if spec.disk_write_mib_s is not None:
        limit = f"throttle-group,id=disk,x-bps-write={spec.disk_write_mib_s << 20}"
        throttle = ["-object", limit, "-blockdev", "throttle,node-name=limited,throttle-group=disk,file=root"]
        drive = "limited"
    # The format is always said: a guest that writes another format's header into its disk must not have it believed.
    block = "driver=raw,node-name=root,discard=unmap,file.driver=file,file.discard=unmap,file.filename=/dev/fdset/1"
    return ["-blockdev", block, *throttle, "-device", f"virtio-blk-device,drive={drive}"]


@functools.cache
def _libraries(program: str) -> tuple[str, ...]:
    """The shared libraries of a program, by the dynamic linker's own answer."""
    try:
        run = subprocess.run(["/usr/bin/ldd", program], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineError("jail", f"the libraries of {program} cannot be listed: {error}") from error
    return tuple(re.findall(r"(/\S+) \(0x", run.stdout))


@functools.cache
def _merged(path: str) -> str:
    """The path with its folder's symbolic links resolved: on a merged system /lib/… is /usr/lib/…."""
    folder, name = os.path.split(path)
    return f"{os.path.realpath(folder)}/{name}"


def static_binds(isolation: Isolation) -> dict[str, str]:
    """path inside → path on the host, of all that QEMU reads at start beside kernel and initramfs."""
    programs = [BINARY] + ([TCG_MODULE] if isolation == "emulated" and Path(TCG_MODULE).exists() else [])
    files = [*programs, *(lib for program in programs for lib in _libraries(program))]
    binds = {_merged(path): os.path.realpath(path) for path in files}
    return binds | {folder: folder for folder in FIRMWARE if Path(folder).is_dir()}


def binds_for(spec: MachineSpec, isolation: Isolation) -> dict[str, str]:
    return static_binds(isolation) | {
        KERNEL_INSIDE: str(spec.kernel.resolve()),
        INITRAMFS_INSIDE: str(spec.initramfs.resolve()),
    }


async def version() -> str:
    """QEMU's own version text, e.g. `7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`."""
    try:
        process = await asyncio.create_subprocess_exec(BINARY, "--version", stdout=asyncio.subprocess.PIPE)
    except OSError as error:
        raise MachineError("start", f"{BINARY} cannot be run; install qemu-system-x86: {error}") from error
    out, _ = await process.communicate()
    match = re.search(rb"version (.*)", out)
    if process.returncode != 0 or not match:
        raise MachineError("start", f"{BINARY} --version failed with {process.returncode}")
    return match[1].decode(errors="replace").strip()
