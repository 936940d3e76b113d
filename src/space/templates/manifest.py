"""What a template is made of, and the digest that names it."""

import asyncio
import hashlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

FILES = ("rootfs.ext4", "vmlinux", "initramfs")
NAME = "manifest.json"


class KernelInfo(BaseModel):
    """The kernel package a template boots."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    package: str
    version: str
    release: str


class Manifest(BaseModel):
    """`manifest.json`. `created_at` is no part of the digest: the same content at another time is the same template."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    tag: str
    created_at: str  # RFC 3339, UTC
    architecture: str
    kernel: KernelInfo
    agent_sha256: str
    size_mib: int
    packages: list[str]  # name=version, sorted
    files: dict[str, str]  # name -> SHA-256, hex

    @property
    def digest(self) -> str:
        """SHA-256, hex, of the manifest as JSON with sorted keys and no spaces, without `created_at`."""
        content = self.model_dump(exclude={"created_at"})
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a published template."""
        return cls.model_validate_json((folder / NAME).read_bytes())

    def write(self, folder: Path) -> None:
        """Write `manifest.json`."""
        (folder / NAME).write_text(self.model_dump_json(indent=2) + "\n")


async def sha256(path: Path) -> str:
    """SHA-256 of a file, hex."""
    return await asyncio.to_thread(_sha256, path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
