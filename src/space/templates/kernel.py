"""Debian's cloud kernel, as an ELF file a machine monitor can start and a tree of modules; never installed on the host.

Only x86-64 so far: other architectures have no bzImage.
"""

import asyncio
import lzma
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from space.base.commands import CommandError, run
from space.templates.errors import TemplateError

METAPACKAGE = "linux-image-cloud-amd64"

# Offsets in the boot sector, from the kernel's Documentation/arch/x86/boot.rst.
SETUP_SECTORS_AT = 0x1F1
HEADER_MAGIC_AT = 0x202
PAYLOAD_AT = 0x248

# 27 MB over a slow line; apt itself retries inside it.
DOWNLOAD_TIMEOUT_S = 600.0
ELF = b"\x7fELF"


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel: `release` is its uname, `modules` the folder that holds `kernel/`."""

    package: str
    version: str
    release: str
    vmlinux: Path
    modules: Path


async def resolve() -> tuple[str, str]:
    """The package that the metapackage stands for on this host's sources, and its candidate version."""
    try:
        listing = (await run(["apt-cache", "depends", "--important", METAPACKAGE])).text
        package = parse_depends(listing)
        policy = (await run(["apt-cache", "show", "--no-all-versions", package])).text
    except CommandError as error:
        raise TemplateError("kernel", f"apt does not know {METAPACKAGE}: {error}", "run apt-get update") from error
    version = next((line.split(":", 1)[1].strip() for line in policy.splitlines() if line.startswith("Version:")), "")
    if not version:
        raise TemplateError("kernel", f"apt has no version of {package}", "run apt-get update")
    return package, version


def parse_depends(listing: str) -> str:
    """The image package in the output of `apt-cache depends`."""
    for line in listing.splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends" and name.startswith("linux-image-"):
            return name
    raise TemplateError("kernel", f"{METAPACKAGE} depends on no kernel image", "run apt-get update")


async def fetch(cache: Path) -> Kernel:
    """The current kernel, unpacked below `cache` by package and version; downloaded only when it is not there."""
    package, version = await resolve()
    release = package.removeprefix("linux-image-")
    home = cache / f"{package}_{version.replace(':', '%3a').replace('/', '_')}"
    kernel = Kernel(package, version, release, home / "vmlinux", home / "modules")
    if home.is_dir():
        return kernel
    work = await asyncio.to_thread(_workspace, cache)
    try:
        await _unpack(kernel, work)
        await asyncio.to_thread(_publish, work / "out", home)
    except CommandError as error:
        raise TemplateError("kernel", str(error)) from error
    finally:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
    return kernel


async def _unpack(kernel: Kernel, work: Path) -> None:
    # As the _apt user the download could not be written into a folder of root's.
    await run(
        ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", f"{kernel.package}={kernel.version}"],
        cwd=work,
        timeout=DOWNLOAD_TIMEOUT_S,
    )
    [package] = await asyncio.to_thread(lambda: list(work.glob("*.deb")))
    tree, out = work / "tree", work / "out"
    await run(["dpkg-deb", "-x", package, tree])
    out.mkdir()
    image = (tree / "boot" / f"vmlinuz-{kernel.release}").read_bytes()
    (out / "vmlinux").write_bytes(await decompress(payload(image)))
    modules = next(path for path in (tree / "lib/modules", tree / "usr/lib/modules") if path.is_dir())
    (modules / kernel.release).rename(out / "modules")


def _workspace(cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=".kernel-", dir=cache))


def _publish(out: Path, home: Path) -> None:
    try:
        os.rename(out, home)
    except OSError:
        # Another build was faster with the same version; what it published is the same.
        if not home.is_dir():
            raise


def payload(image: bytes) -> bytes:
    """The compressed kernel inside a bzImage."""
    if len(image) < PAYLOAD_AT + 8 or image[HEADER_MAGIC_AT : HEADER_MAGIC_AT + 4] != b"HdrS":
        raise TemplateError("kernel", "not a bzImage: no setup header")
    sectors = image[SETUP_SECTORS_AT] or 4  # 0 means 4, for very old kernels
    offset, length = struct.unpack_from("<II", image, PAYLOAD_AT)
    start = (sectors + 1) * 512 + offset
    if not length or start + length > len(image):
        raise TemplateError("kernel", "not a whole bzImage: its payload lies outside the file")
    return image[start : start + length]


def _gunzip(data: bytes) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(data)


def _unxz(data: bytes) -> bytes:
    return lzma.LZMADecompressor().decompress(data)


_PYTHON_BY_MAGIC: dict[bytes, Callable[[bytes], bytes]] = {b"\x1f\x8b": _gunzip, b"\xfd7zXZ\x00": _unxz}
_TOOL_BY_MAGIC = {b"\x02\x21\x4c\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}


async def decompress(data: bytes) -> bytes:
    """An ELF kernel or module from what its package made of it; the form is told by its first bytes."""
    if data.startswith(ELF):
        return data
    for magic, decoder in _PYTHON_BY_MAGIC.items():
        if data.startswith(magic):
            return _elf(await asyncio.to_thread(decoder, data))
    for magic, tool in _TOOL_BY_MAGIC.items():
        if data.startswith(magic):
            return _elf(await _by_tool(tool, data))
    raise TemplateError("kernel", f"unknown compression, first bytes {data[:4].hex()}")


async def _by_tool(tool: str, data: bytes) -> bytes:
    # The kernel's build appends the unpacked size, four bytes that are no part of the stream and that lz4 refuses. zstd
    # complains about them only after it wrote everything; both are caught by looking for the ELF and its size.
    size = struct.unpack("<I", data[-4:])[0]
    for body in (data[:-4], data):
        with tempfile.TemporaryDirectory(prefix="space-kernel-") as folder:
            source, target = Path(folder) / "in", Path(folder) / "out"
            source.write_bytes(body)
            try:
                await run(
                    [tool, "-d", "-q", "-f", source, target]
                    if tool == "lz4"
                    else [tool, "-d", "-q", "-f", source, "-o", target]
                )
            except CommandError as error:
                if error.code is None:
                    raise TemplateError("kernel", str(error), f"apt-get install {tool}") from error
                continue
            out = target.read_bytes()
            if body is data or len(out) == size:
                return out
    raise TemplateError("kernel", f"{tool} could not unpack the kernel")


def _elf(data: bytes) -> bytes:
    if not data.startswith(ELF):
        raise TemplateError("kernel", "what came out of the package is not an ELF file")
    return data
