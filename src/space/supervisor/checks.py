"""What this host must have; each failed check carries the line that mends it. For `doctor` and `up`."""

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

# Program → Debian package. The same names in Debian 12, 13 and Ubuntu 24.04.
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "lz4": "lz4",
    "zstd": "zstd",
    "nft": "nftables",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.ext4": "e2fsprogs",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "ip": "iproute2",
    "losetup": "mount",
    "useradd": "passwd",
}
# Room for the template and a handful of sandboxes.
FREE_MIB = 4096


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True

    def as_dict(self) -> dict[str, object]:
        """For ``--json``."""
        return asdict(self)


def find_program(name: str) -> str | None:
    """Look in PATH and where Debian keeps root's programs: a user's PATH often lacks /sbin."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")


def check_root() -> Check:
    """Namespaces, mounts and uids need root."""
    is_root = os.geteuid() == 0
    return Check("root", is_root, "running as root" if is_root else f"running as uid {os.geteuid()}", "sudo space up")


def check_programs() -> Check:
    """All needed packages in one line to paste."""
    missing = sorted({package for program, package in PROGRAMS.items() if find_program(program) is None})
    fix = f"apt-get install --no-install-recommends -y {' '.join(missing)}" if missing else ""
    return Check("packages", not missing, f"missing: {', '.join(missing)}" if missing else "all there", fix)


def check_btrfs() -> Check:
    """Sandboxes' disks are btrfs clones."""
    listed = "btrfs" in Path("/proc/filesystems").read_text()
    return Check("btrfs", listed, "known to the kernel" if listed else "not loaded", "modprobe btrfs")


def check_tun() -> Check:
    """A machine's network card is a tap device."""
    there = Path("/dev/net/tun").exists()
    return Check("tun", there, "/dev/net/tun" if there else "no /dev/net/tun", "modprobe tun")


def check_loop() -> Check:
    """The pool file is mounted by a loop device."""
    there = Path("/dev/loop-control").exists()
    return Check("loop", there, "/dev/loop-control" if there else "no /dev/loop-control", "modprobe loop")


def check_space(state_dir: Path) -> Check:
    """The pool is allocated at once."""
    place = next(p for p in [state_dir, *state_dir.parents] if p.exists())
    free = shutil.disk_usage(place).free // (1024 * 1024)
    return Check(
        "disk", free >= FREE_MIB, f"{free} MiB free at {place}", f"free {FREE_MIB} MiB, or set SPACE_STATE_DIR"
    )


def check_kvm() -> Check:
    """Say whether machines can be isolated by hardware. A device file alone proves nothing; `up` boots a guest."""
    flags = Path("/proc/cpuinfo").read_text().split()
    has_flag = "vmx" in flags or "svm" in flags
    if has_flag and Path("/dev/kvm").exists():
        return Check("kvm", True, "CPU offers it and /dev/kvm is there; `space up` proves it by booting", "", False)
    if has_flag:
        return Check(
            "kvm", False, "CPU offers it but there is no /dev/kvm", "modprobe kvm_intel || modprobe kvm_amd", False
        )
    return Check(
        "kvm",
        False,
        "the CPU shows neither vmx nor svm: machines are emulated, slower, with no isolation promised by QEMU",
        "use a bare-metal host or switch nested virtualisation on in the hypervisor that runs this host",
        False,
    )


def all_checks(state_dir: Path) -> list[Check]:
    """Every check, required ones first."""
    return [
        check_root(),
        check_programs(),
        check_btrfs(),
        check_tun(),
        check_loop(),
        check_space(state_dir),
        check_kvm(),
    ]
