"""The kernel comes out of its real package as an ELF file, once for each version."""

import gzip
import lzma
import struct
import subprocess
from pathlib import Path

import pytest

from space.templates import initramfs, kernel
from space.templates.errors import TemplateError

BODY = b"\x7fELF" + bytes(range(256)) * 64


def bzimage(payload: bytes, *, sectors: int = 1) -> bytes:
    head = bytearray((sectors + 1) * 512)
    head[kernel.SETUP_SECTORS_AT] = sectors
    head[kernel.HEADER_MAGIC_AT : kernel.HEADER_MAGIC_AT + 4] = b"HdrS"
    head[kernel.PAYLOAD_AT : kernel.PAYLOAD_AT + 8] = struct.pack("<II", 16, len(payload))
    return bytes(head) + bytes(16) + payload + b"after"


def by_tool(*command: str) -> bytes:
    return subprocess.run(command, input=BODY, stdout=subprocess.PIPE, check=True).stdout


@pytest.mark.parametrize(
    "packed",
    [BODY, gzip.compress(BODY), lzma.compress(BODY), by_tool("lz4", "-l", "-c"), by_tool("zstd", "-c", "-q")],
    ids=["plain", "gzip", "xz", "lz4", "zstd"],
)
@pytest.mark.parametrize("with_size", [True, False])
async def test_every_compression_the_kernel_may_have(packed: bytes, with_size: bool) -> None:
    tail = struct.pack("<I", len(BODY)) if with_size and packed != BODY else b""
    assert await kernel.decompress(kernel.payload(bzimage(packed + tail))) == BODY


@pytest.mark.parametrize("image", [b"", bytes(4096), bzimage(b"x" * 99)[:-60]])
def test_what_is_no_whole_image_is_refused(image: bytes) -> None:
    with pytest.raises(TemplateError, match="bzImage"):
        kernel.payload(image)


async def test_unknown_and_broken_compression_is_refused() -> None:
    with pytest.raises(TemplateError, match="unknown compression"):
        await kernel.decompress(b"????????")
    with pytest.raises(TemplateError, match="lz4 could not"):
        await kernel.decompress(by_tool("lz4", "-l", "-c")[:4] + b"\xff" * 64)


async def test_the_real_package(tmp_path: Path) -> None:
    linux = await kernel.fetch(tmp_path)
    assert linux.vmlinux.read_bytes()[:4] == b"\x7fELF"
    assert linux.vmlinux.stat().st_size > 20_000_000
    again = await kernel.fetch(tmp_path)
    assert again == linux
    assert [path.name for path in tmp_path.iterdir()] == [linux.vmlinux.parent.name]
    names = [Path(path).name for path, _ in await initramfs.load_order(linux.modules)]
    for first, then in [
        ("virtio_ring.ko", "virtio.ko"),
        ("virtio.ko", "virtio_mmio.ko"),
        ("failover.ko", "virtio_net.ko"),
    ]:
        assert names.index(first) < names.index(then)
