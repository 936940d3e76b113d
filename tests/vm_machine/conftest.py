"""A real machine: Debian's kernel with a busybox initramfs that prints, obeys words of its command line, idles."""

import itertools
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from space.templates import initramfs, kernel
from space.vm import cgroup
from space.vm.base import MachineSpec
from space.vm.net import Network
from space.vm.process import start_time
from space.vm.qemu import QemuDriver
from space.vm.qemu_machine import QemuMachine

MODULES = ("virtio_mmio", "virtio_blk", "virtio_net", "virtio_rng")
INIT = b"""#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
while read m; do $b insmod $m; done < /modules.list
macs=$($b cat /sys/class/net/eth0/address /sys/class/net/eth1/address | $b xargs)
echo "disk $($b cat /sys/block/vda/size) macs $macs"
echo "space-agent: ready"
for w in $($b cat /proc/cmdline); do case $w in
test.flood) $b yes flooding-the-console-of-the-machine ;;
test.off) $b poweroff -f ;;
test.reset) $b reboot -f ;;
test.panic) echo c > /proc/sysrq-trigger ;;
esac; done
while true; do $b sleep 1; done
"""
READY = b"space-agent: ready"
BOOT_S = 60.0  # 2 s alone; both cores may be busy
_numbers = itertools.count()


@dataclass(frozen=True)
class Guest:
    kernel: Path
    initramfs: Path


@pytest.fixture(scope="session")
def guest_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"home": tmp_path_factory.mktemp("guest")}


@pytest.fixture
async def guest(guest_files: dict[str, Path]) -> Guest:
    home = guest_files["home"]
    if "initramfs" not in guest_files:
        made = await kernel.fetch(home)
        ordered = await initramfs.load_order(made.modules, MODULES)
        folder, plain, program = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644, stat.S_IFREG | 0o755
        names = [Path(path).name for path, _ in ordered]
        archive = initramfs.pack(
            [
                *(initramfs.Entry(name, folder) for name in ("bin", "dev", "proc", "sys", "modules")),
                initramfs.Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)),
                initramfs.Entry("bin/busybox", program, Path("/bin/busybox").read_bytes()),
                initramfs.Entry("init", program, INIT),
                initramfs.Entry("modules.list", plain, "".join(f"/modules/{name}\n" for name in names).encode()),
                *(
                    initramfs.Entry(f"modules/{name}", plain, data)
                    for name, (_, data) in zip(names, ordered, strict=True)
                ),
            ]
        )
        (home / "test-initramfs").write_bytes(archive)
        guest_files |= {"kernel": made.vmlinux, "initramfs": home / "test-initramfs"}
    return Guest(guest_files["kernel"], guest_files["initramfs"])


@dataclass
class Bench:
    """A driver with a namespace and a disk; `start` boots, and everything is gone at the end."""

    driver: QemuDriver
    spec: MachineSpec
    run_dir: Path
    network: Network
    started: list[QemuMachine] = field(default_factory=list)

    async def start(self, boot_args: str = "", *, driver: QemuDriver | None = None) -> QemuMachine:
        spec = replace(self.spec, id=f"{self.spec.id}-{next(_numbers)}", boot_args=boot_args)
        machine = await (driver or self.driver).start(spec)
        self.started.append(machine)
        return machine

    async def booted(self, boot_args: str = "") -> QemuMachine:
        machine = await self.start(boot_args)
        found = await machine.console_ring.find(READY, BOOT_S)
        assert found, machine.console_ring.tail().decode(errors="replace")
        return machine

    def left(self, machine: QemuMachine) -> list[str]:
        """What still exists of a machine."""
        # a zombie counts as gone: an adopted machine is process 1's to reap
        running = [f"process {machine.pid}"] if start_time(machine.pid) is not None else []
        paths = [Path(machine.record["folder"]), *cgroup.folders(machine.id)]
        mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if machine.id in line]
        return running + [str(path) for path in paths if path.exists()] + mounts


@pytest.fixture
async def bench(guest: Guest, tmp_path: Path) -> AsyncIterator[Bench]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    network = Network(prefix=f"space-m{os.getpid()}x{next(_numbers)}-", pool_size=0)
    await network.open()
    netns = await network.acquire()
    disk = tmp_path / "disk"
    disk.touch()
    os.truncate(disk, 64 << 20)
    driver = await QemuDriver.open(tmp_path / "run", "emulated", network.taps)
    name = f"test{os.getpid()}"
    spec = MachineSpec(name, 1, 256, guest.kernel, guest.initramfs, disk, netns, 215001)
    made = Bench(driver, spec, tmp_path / "run", network)
    yield made
    for record in driver.found():
        await driver.remove(record)
    await driver.close()
    await network.delete(netns)
    await network.close()
