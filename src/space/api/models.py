"""Request bodies: strict, bounded, unknown fields refused, no text that cannot be stored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from space.domain import shapes
from space.domain.durations import parse_ms
from space.domain.errors import InvalidRequest, NotInThisVersion, SpaceError

# Environment and metadata are copied into rows, assignments and log lines; 64 entries of 4 KiB are far above real use.
MAX_ENTRIES = 64
MAX_VALUE = 4096


def _storable(value: Any) -> None:
    if isinstance(value, str):
        if "\x00" in value:
            raise ValueError("text must not have NUL characters")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError("text must be valid Unicode") from error
    elif isinstance(value, dict):
        for key, item in value.items():
            _storable(key)
            _storable(item)
    elif isinstance(value, list):
        for item in value:
            _storable(item)


def _duration(text: str) -> str:
    try:
        parse_ms(text)
    except InvalidRequest as error:
        raise ValueError(error.detail) from error
    return text


Duration = Annotated[
    str, Field(max_length=16, pattern=r"^[0-9]{1,9}(ms|s|m|h|d)$", examples=["5m"]), AfterValidator(_duration)
]
Key = Annotated[str, Field(min_length=1, max_length=128)]
Value = Annotated[str, Field(max_length=MAX_VALUE)]
Pairs = Annotated[dict[Key, Value], Field(max_length=MAX_ENTRIES)]
EnvKey = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^=\x00]+$")]
Env = Annotated[dict[EnvKey, Value], Field(max_length=MAX_ENTRIES)]
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Body(BaseModel):
    """Strict: no conversion, no unknown field, no unstorable text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, data: Any) -> Any:
        _storable(data)
        return data


class Resources(Body):
    """What the machine should have at least."""

    vcpus: int | None = Field(None, ge=1, le=1024)
    memory_mib: int | None = Field(None, ge=1, le=2**24)
    disk_mib: int | None = Field(None, ge=shapes.MIN_DISK_MIB, le=shapes.MAX_DISK_MIB)


class CreateSandbox(Body):
    """A new sandbox."""

    template: str = Field("seed:latest", min_length=1, max_length=200)
    name: Name | None = None
    metadata: Pairs = Field(default_factory=dict)
    env: Env = Field(default_factory=dict)
    timeout: Duration = "5m"
    on_timeout: Literal["delete", "suspend"] = "delete"
    idle_timeout: Duration | None = None
    resources: Resources | None = None
    isolation: Literal["kvm"] | None = None
    network: dict[str, Any] | None = Field(None, description='Only {"mode": "none"} in this version.')
    credentials: list[Any] | None = Field(None, description="Not in this version.")
    from_snapshot: str | None = Field(None, description="Not in this version.")

    def refuse_later_features(self) -> None:
        """NotInThisVersion for what a later version does."""
        wrong: SpaceError | None = None
        if self.network is not None and self.network != {"mode": "none"}:
            wrong = NotInThisVersion('network: only {"mode": "none"} in this version', hint="Leave `network` out.")
        elif self.credentials is not None:
            wrong = NotInThisVersion("credentials are not in this version")
        elif self.from_snapshot is not None:
            wrong = NotInThisVersion("from_snapshot is not in this version")
        elif self.on_timeout == "suspend":
            wrong = NotInThisVersion("on_timeout: suspend is not in this version", hint="Use `delete`.")
        if wrong:
            raise wrong


class PatchSandbox(Body):
    """Changes to a sandbox; a new `timeout` counts from now."""

    timeout: Duration | None = None
    idle_timeout: Duration | None = None
    on_timeout: Literal["delete", "suspend"] | None = None
    metadata: Pairs | None = None


class Tty(Body):
    """A terminal's size."""

    rows: int = Field(24, ge=1, le=1000)
    cols: int = Field(80, ge=1, le=1000)


class CreateCommand(Body):
    """A command: an argument list, never a shell line."""

    command: list[Annotated[str, Field(max_length=131_072)]] = Field(min_length=1, max_length=1024)
    cwd: str | None = Field(None, min_length=1, max_length=4096)
    env: Env = Field(default_factory=dict)
    timeout: Duration | None = None
    user: str | None = Field(None, min_length=1, max_length=64)
    tty: Tty | None = None
    stdin: bool = False
    detach: bool = False
    labels: Pairs = Field(default_factory=dict)
    traceparent: str | None = Field(None, pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")

    def spec(self) -> dict[str, Any]:
        """As kept in the row and sent to the agent."""
        return {
            "command": self.command, "cwd": self.cwd, "env": self.env, "user": self.user, "stdin": self.stdin,
            "timeout_ms": parse_ms(self.timeout) if self.timeout else None,
            "tty": self.tty.model_dump() if self.tty else None,
        }  # fmt: skip


class SignalCommand(Body):
    """A signal by name."""

    signal: str = Field(pattern=r"^SIG[A-Z0-9]{2,8}$", examples=["SIGTERM"])


class CreateToken(Body):
    """A data-plane token for one sandbox."""

    scopes: list[Annotated[str, Field(pattern=r"^(commands|processes|console|signal)$")]] = Field(
        min_length=1, max_length=8
    )
    ttl: Duration = "5m"


class CreateKey(Body):
    """An API key."""

    name: Name
    role: Literal["operator", "member"] = "member"
    scopes: list[Annotated[str, Field(pattern=r"^[a-z]{1,32}:[a-z]{1,32}$")]] = Field([], max_length=32)


class CreateNode(Body):
    """A node that may enrol."""

    name: Name
