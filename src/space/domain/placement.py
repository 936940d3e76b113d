"""Choosing a node for a new sandbox: pure, and it says why when there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from space.domain.errors import IsolationUnavailable, NoCapacity, SpaceError, TemplateNotFound


@dataclass(frozen=True)
class Node:
    """What a node has in all and what its sandboxes already take."""

    id: str
    ready: bool
    isolation: Literal["kvm", "emulated"] | None
    memory_mib: int
    disk_mib: int
    max_sandboxes: int
    used_memory_mib: int = 0
    used_disk_mib: int = 0
    sandboxes: int = 0
    templates: Mapping[str, str] = field(default_factory=dict)  # name → digest

    @property
    def free_memory_mib(self) -> int:
        """Memory that no sandbox was promised."""
        return self.memory_mib - self.used_memory_mib


@dataclass(frozen=True)
class Request:
    """What the sandbox needs. CPU time is shared, so virtual CPUs do not count against a node."""

    template: str
    memory_mib: int
    disk_mib: int
    require_isolation: Literal["kvm"] | None = None


@dataclass(frozen=True)
class Placed:
    """The node, and the digest that the template has there."""

    node_id: str
    digest: str


def place(request: Request, nodes: Iterable[Node]) -> Placed | SpaceError:
    """The ready node with most free memory that can take it, or the reason why there is none."""
    ready = [node for node in nodes if node.ready]
    if not ready:
        return NoCapacity("no node is ready", hint="`space node ls` shows the nodes; `space up` starts one here.")
    having = [node for node in ready if request.template in node.templates]
    if not having:
        return TemplateNotFound(f"no ready node has the template {request.template}")
    isolated = [node for node in having if request.require_isolation in (None, node.isolation)]
    if not isolated:
        return IsolationUnavailable()
    roomy = [node for node in isolated if _has_room(node, request)]
    if not roomy:
        return NoCapacity(f"no node has {request.memory_mib} MiB of memory and {request.disk_mib} MiB of disk free")
    best = max(roomy, key=lambda node: (node.free_memory_mib, node.id))
    return Placed(best.id, best.templates[request.template])


def _has_room(node: Node, request: Request) -> bool:
    return (
        node.sandboxes < node.max_sandboxes
        and node.free_memory_mib >= request.memory_mib
        and node.disk_mib - node.used_disk_mib >= request.disk_mib
    )
