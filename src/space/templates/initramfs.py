"""Our initramfs: the agent as /init and the kernel modules it loads before the root is mounted, in insmod order.

The archive is written here, byte for byte the same from the same inputs. It is not compressed: unpacking it in software
emulation would cost more than reading it.
"""

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from space.templates.errors import TemplateError
from space.templates.kernel import decompress

# What a machine needs whichever monitor runs it. The vsock transport serves monitors that have one; overlay is for
# guests that run containers or layers. ext4 is built into Debian's cloud kernel; where it is a module, it brings what
# it needs.
WANTED = (
    "virtio_mmio",
    "virtio_blk",
    "virtio_net",
    "virtio_rng",
    "ext4",
    "vsock",
    "vmw_vsock_virtio_transport",
    "overlay",
)
SUFFIXES = (".ko", ".ko.xz", ".ko.gz", ".ko.zst")


@dataclass(frozen=True)
class Entry:
    """One member of the archive; `device` is (major, minor) of a node."""

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def pack(entries: Iterable[Entry]) -> bytes:
    """A `newc` cpio archive: ASCII hex headers, everything padded to four bytes, owner root, time 0."""
    out = bytearray()
    for number, entry in enumerate([*entries, Entry("TRAILER!!!", 0)], start=1):
        name = entry.path.encode() + b"\0"
        inode = 0 if entry.path == "TRAILER!!!" else number
        links = 2 if stat.S_ISDIR(entry.mode) else 1
        fields = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        out += bytes(-len(out) % 4) + entry.data
        out += bytes(-len(out) % 4)
    return bytes(out)


def normal(name: str) -> str:
    """A module's name as the kernel spells it: files have hyphens where the kernel has underscores."""
    return name.replace("-", "_")


def modinfo_depends(module: bytes) -> list[str]:
    """What a module says in its `.modinfo` section that it needs, normalised."""
    start = module.find(b"\0depends=")
    if start < 0:
        return []
    value = module[start + len(b"\0depends=") : module.index(b"\0", start + 1)]
    return [normal(name) for name in value.decode().split(",") if name]


def parse_builtin(listing: str) -> set[str]:
    """The names in `modules.builtin`, normalised."""
    return {normal(Path(line).name.removesuffix(".ko")) for line in listing.splitlines() if line.strip()}


async def load_order(modules: Path, wanted: Iterable[str] = WANTED) -> list[tuple[str, bytes]]:
    """The wanted modules and what they need as (path below `kernel/`, unpacked bytes), each after what it needs.

    The package has no `modules.dep` (depmod makes it on installation), so each module is asked itself.
    """
    files = _index(modules / "kernel")
    builtin = parse_builtin((modules / "modules.builtin").read_text())
    done: dict[str, tuple[str, bytes]] = {}

    async def visit(name: str, chain: tuple[str, ...]) -> None:
        if name in done or name in builtin:
            return
        if name in chain:
            raise TemplateError("initramfs", f"modules need each other: {' -> '.join((*chain, name))}")
        if name not in files:
            raise TemplateError("initramfs", f"the kernel has no module {name}")
        path = files[name]
        data = await decompress(path.read_bytes())
        for need in modinfo_depends(data):
            await visit(need, (*chain, name))
        shown = str(path.relative_to(modules / "kernel"))
        done[name] = (shown[: shown.index(".ko")] + ".ko", data)

    for name in wanted:
        await visit(normal(name), ())
    return list(done.values())


def _index(folder: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.rglob("*.ko*")):
        for suffix in SUFFIXES:
            if path.name.endswith(suffix):
                found[normal(path.name.removesuffix(suffix))] = path
    return found


async def build(agent: bytes, modules: Path) -> bytes:
    """The whole archive. `/modules.list` has one path a line, in the order to insert."""
    ordered = await load_order(modules)
    places = [f"modules/{Path(path).name}" for path, _ in ordered]
    folders = ["dev", "mnt", "modules", "newroot", "proc", "run", "sys", "tmp"]
    return pack(
        [
            *(Entry(folder, stat.S_IFDIR | 0o755) for folder in folders),
            # The kernel opens it for process 1 before anything is mounted.
            Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)),
            Entry("init", stat.S_IFREG | 0o755, agent),
            Entry("modules.list", stat.S_IFREG | 0o644, "".join(f"/{place}\n" for place in places).encode()),
            *(Entry(place, stat.S_IFREG | 0o644, data) for place, (_, data) in zip(places, ordered, strict=True)),
        ]
    )
