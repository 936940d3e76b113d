"""Messages of the worker's unix socket, spoken by the data plane beside it: one JSON line asks, one answers.

The answer to `open` brings one connected guest stream (SCM_RIGHTS).
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from space.wire.node import CommandState


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Open(_Message):
    """Give me a stream to the agent of this sandbox."""

    op: Literal["open"] = "open"
    sandbox: str


class List(_Message):
    """Which sandboxes run here?"""

    op: Literal["list"] = "list"


class Report(_Message):
    """Tell the controller about this command."""

    op: Literal["report"] = "report"
    command: CommandState


class Activity(_Message):
    """A client uses the sandbox."""

    op: Literal["activity"] = "activity"
    sandbox: str


class Console(_Message):
    """Give me the end of the serial console."""

    op: Literal["console"] = "console"
    sandbox: str


LocalRequest = Annotated[Open | List | Report | Activity | Console, Field(discriminator="op")]
requests: TypeAdapter[LocalRequest] = TypeAdapter(LocalRequest)
