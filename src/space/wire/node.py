"""Messages of the node protocol: JSON lines over mutual TLS between a worker and a controller."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

HEARTBEAT_S = 2.0  # often enough that a lost node shows within its lease, rare enough to cost nothing
LEASE_S = 15.0  # seven heartbeats: a loaded host is late, only a dead one is that late


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CommandState(_Message):
    """One command as the data plane saw it."""

    id: str
    sandbox: str
    state: Literal["running", "exited", "failed"]
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    reason: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Capacity(_Message):
    """What a node has in all."""

    vcpus: int
    memory_mib: int
    disk_mib: int
    max_sandboxes: int


class Template(_Message):
    """A template that stands on the node."""

    name: str
    digest: str
    size_mib: int
    manifest: dict[str, Any] = {}


class Present(_Message):
    """A sandbox that the node holds when it connects."""

    id: str
    epoch: int
    state: Literal["creating", "running", "deleting", "failed"]


class Spec(_Message):
    """What a sandbox is made from."""

    template: str
    digest: str
    vcpus: int
    memory_mib: int
    disk_mib: int
    env: dict[str, str] = {}
    hostname: str


# -- worker to controller


class Enrol(_Message):
    """The only message taken from a node without a certificate."""

    type: Literal["enrol"] = "enrol"
    token: str
    csr: str  # PEM


class Hello(_Message):
    """The first message of a known node."""

    type: Literal["hello"] = "hello"
    node: str
    capacity: Capacity
    machine: dict[str, str]
    templates: list[Template] = []
    sandboxes: list[Present] = []
    data_plane_url: str | None = None


class SandboxReport(_Message):
    """What the node observes of a sandbox."""

    type: Literal["report"] = "report"
    sandbox: str
    epoch: int
    state: Literal["creating", "running", "deleted", "failed"]
    reason: str | None = None
    phase: str | None = None
    timings: dict[str, float] = {}
    isolation: Literal["kvm", "emulated"] | None = None
    started_from: Literal["pool", "clone", "boot"] | None = None


class CommandReport(_Message):
    """A command started or ended."""

    type: Literal["command_report"] = "command_report"
    command: CommandState


class Activity(_Message):
    """Clients used these sandboxes since the last such message."""

    type: Literal["activity"] = "activity"
    sandboxes: list[str]


class Heartbeat(_Message):
    """The node lives."""

    type: Literal["heartbeat"] = "heartbeat"


# -- controller to worker


class Enrolled(_Message):
    """The certificate."""

    type: Literal["enrolled"] = "enrolled"
    node: str
    certificate: str  # PEM


class Assign(_Message):
    """The whole of what one sandbox should be on this node."""

    type: Literal["assign"] = "assign"
    sandbox: str
    epoch: int
    desired: Literal["running", "deleted"]
    spec: Spec


class Welcome(_Message):
    """Every assignment of this node was sent: what none explains may be removed."""

    type: Literal["welcome"] = "welcome"
    sandboxes: list[str]


class Ack(_Message):
    """The report with this state was taken or refused; either way it need not be sent again."""

    type: Literal["ack"] = "ack"
    sandbox: str
    epoch: int
    state: str
    taken: bool


class Refused(_Message):
    """The connection ends; why."""

    type: Literal["refused"] = "refused"
    reason: str


FromWorker = Annotated[
    Enrol | Hello | SandboxReport | CommandReport | Activity | Heartbeat, Field(discriminator="type")
]
FromController = Annotated[Enrolled | Assign | Welcome | Ack | Refused, Field(discriminator="type")]
from_worker: TypeAdapter[FromWorker] = TypeAdapter(FromWorker)
from_controller: TypeAdapter[FromController] = TypeAdapter(FromController)
