"""Shapes: the sizes a machine can have. A request is rounded up to the smallest shape that holds it, or refused."""

from __future__ import annotations

from dataclasses import dataclass

from space.domain.errors import NoSuchShape


@dataclass(frozen=True, order=True)
class Shape:
    """Virtual CPUs and memory in MiB."""

    vcpus: int
    memory_mib: int


# Few on purpose: each shape needs its own memory snapshots per template later.
SHAPES = (
    Shape(1, 512),
    Shape(1, 1024),
    Shape(2, 2048),
    Shape(2, 4096),
    Shape(4, 4096),
    Shape(4, 8192),
    Shape(8, 16384),
)
DEFAULT = Shape(1, 1024)
# The seed template's root holds about 1 GiB; 4 GiB leaves room for a virtual environment and a checkout.
DEFAULT_DISK_MIB = 4096
MIN_DISK_MIB = 512
MAX_DISK_MIB = 65_536


def choose(vcpus: int | None, memory_mib: int | None) -> Shape:
    """The smallest shape with at least these (what is not given asks for nothing); NoSuchShape when none is."""
    if vcpus is None and memory_mib is None:
        return DEFAULT
    for shape in SHAPES:
        if shape.vcpus >= (vcpus or 1) and shape.memory_mib >= (memory_mib or 1):
            return shape
    top = SHAPES[-1]
    raise NoSuchShape(
        f"no shape has {vcpus or 1} vCPUs and {memory_mib or 1} MiB; "
        f"the largest has {top.vcpus} and {top.memory_mib} MiB"
    )
