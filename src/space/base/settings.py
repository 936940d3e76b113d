"""The one table of settings: every ``SPACE_*`` variable, its default, its meaning and its reason.

Nothing else in the tree reads the environment. ``python -m space.base.settings`` prints ``docs/settings.md``.
"""

import difflib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from space.base.durations import Seconds, format_duration

PREFIX = "SPACE_"


class SettingsError(Exception):
    """A ``SPACE_*`` variable is unknown or has a value that cannot be used."""


def _setting(default: Any, description: str, why: str) -> Any:
    return Field(default=default, description=description, json_schema_extra={"why": why})


class Settings(BaseModel):
    """What one process was told; read once at its start and then handed on as a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # Places
    state_dir: Path = _setting(
        Path("/var/lib/space"), "Everything that must survive a restart.", "Where Debian keeps a service's state."
    )
    run_dir: Path = _setting(Path("/run/space"), "Sockets and pid files.", "A file system that a reboot empties.")
    database_url: SecretStr | None = _setting(
        None, "PostgreSQL (15 or later) to use; unset starts an embedded one.", "It usually holds a password: masked."
    )

    # Addresses
    api_host: str = _setting("127.0.0.1", "Address the API listens on.", "Nothing is offered to a network unasked.")
    api_port: int = _setting(7400, "Port of the API.", "One block of numbers, 7400-7403, for the whole platform.")
    ops_port: int = _setting(
        7401, "Port of /healthz, /readyz and /metrics.", "They need no key, so they are not on the public listener."
    )
    data_plane_host: str = _setting("127.0.0.1", "Address the data plane listens on.", "As for api_host.")
    data_plane_port: int = _setting(7402, "Port of the data plane.", "Same block of numbers.")
    data_plane_url: str | None = _setting(
        None, "Data plane as clients reach it.", "Differs from the listener behind a proxy; made from it when unset."
    )
    api_url: str | None = _setting(
        None,
        "API as clients and the data plane reach it.",
        "Differs from the listener behind a proxy; made when unset.",
    )
    node_listen_host: str = _setting(
        "127.0.0.1", "Address the controller takes nodes on.", "A second node needs another address; asked for by name."
    )
    node_listen_port: int = _setting(7403, "Port the controller takes nodes on.", "Same block of numbers.")
    controller_url: str | None = _setting(
        None, "host:port at which a worker dials its controller.", "Made from node_listen_* when unset."
    )

    # A client's context
    api_token: SecretStr | None = _setting(None, "API key of the `space` command.", "A secret: masked.")
    template: str = _setting("seed:latest", "Template of new sandboxes.", "The only one made by `space up`.")

    # The node
    node_name: str | None = _setting(None, "Name of this node.", "The host's name when unset.")
    enrol_token: SecretStr | None = _setting(
        None, "One-time token with which a new node asks for its certificate.", "A secret: masked; used once."
    )
    vmm: Literal["auto", "firecracker", "qemu"] = _setting(
        "auto", "Machine monitor.", "auto takes the first that a real boot proves."
    )
    accel: Literal["auto", "kvm", "tcg"] = _setting(
        "auto", "kvm, or tcg for emulation.", "auto never goes down to tcg on a CPU that offers vmx or svm."
    )
    uid_base: int = _setting(
        200000, "First uid given to machine processes.", "Above system and login users, below container ranges."
    )
    uid_count: int = _setting(4096, "How many uids machines may use.", "One a machine; no node holds more machines.")
    pool_size_mib: int = _setting(
        20480,
        "Size of the pool file where state_dir is not btrfs.",
        "Some ten full disks; allocated at once, no surprise.",
    )
    pool_floor_mib: int = _setting(
        1024,
        "Free space below which no clone is made.",
        "btrfs needs room to be able to delete; refusing early is cheaper.",
    )
    boot_timeout: Seconds = _setting(
        60.0,
        "A machine that has not answered by then has failed.",
        "Emulated boots take 2-7 s; a loaded host times eight.",
    )
    probe_timeout: Seconds = _setting(
        40.0, "Deadline of the boot that proves a driver.", "A broken KVM never boots; too short costs a wrong refusal."
    )

    # Tokens and deadlines
    token_ttl: Seconds = _setting(
        300.0, "Life of an attachment token.", "Long enough to open a connection, useless in an old log."
    )
    max_timeout: Seconds = _setting(
        86400.0, "Longest deadline a sandbox may ask for.", "A day; a forgotten sandbox must end by itself."
    )
    drain_timeout: Seconds = _setting(
        20.0,
        "How long a part may take to stop after SIGTERM.",
        "Longer than a machine's shutdown, shorter than patience.",
    )

    # Telling
    log_json: bool = _setting(
        False, "JSON lines instead of text in the logs.", "People read first; fleets ask for JSON."
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Least severe lines that are written.", "One line a request is what an operator can follow."
    )

    @classmethod
    def load(cls, env: Mapping[str, str] | None = None) -> "Settings":
        """Read the environment; refuse a variable nobody knows, naming the nearest one that exists."""
        source = os.environ if env is None else env
        given = {name: value for name, value in source.items() if name.startswith(PREFIX)}
        for name in given:
            if name not in known_variables():
                near = difflib.get_close_matches(name, known_variables(), n=1, cutoff=0.0)
                raise SettingsError(f"{name} is not a setting; did you mean {near[0]}? (see docs/settings.md)")
        try:
            # An empty value is "unset", as compose files and CI forms give it.
            return cls.model_validate({n.removeprefix(PREFIX).lower(): v for n, v in given.items() if v != ""})
        except ValidationError as error:
            raise SettingsError(_explain(error)) from None

    def dump(self) -> dict[str, str]:
        """Every setting as text with secrets masked: safe to print and to log."""
        return {name: _show(getattr(self, name), type(self).model_fields[name]) for name in type(self).model_fields}

    def environment(self) -> dict[str, str]:
        """Give the variables that make another process read the same settings. Holds secrets in the clear."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {variable_of(name): _plain(value) for name, value in values.items() if value is not None}

    @property
    def public_api_url(self) -> str:
        """The API's address for clients, made from the listener when none is set."""
        return self.api_url or f"http://{self.api_host}:{self.api_port}"

    @property
    def public_data_plane_url(self) -> str:
        """The data plane's address for clients, made from the listener when none is set."""
        return self.data_plane_url or f"http://{self.data_plane_host}:{self.data_plane_port}"

    @property
    def controller_address(self) -> tuple[str, int]:
        """Where a worker dials its controller."""
        host, _, port = (self.controller_url or f"{self.node_listen_host}:{self.node_listen_port}").rpartition(":")
        return host, int(port)


def variable_of(field: str) -> str:
    """Name of the variable that sets ``field``."""
    return PREFIX + field.upper()


def known_variables() -> list[str]:
    """All variables there are."""
    return [variable_of(name) for name in Settings.model_fields]


def given_fields() -> set[str]:
    """Names of the settings that the environment sets."""
    return {name for name in Settings.model_fields if os.environ.get(variable_of(name))}


def client_environment() -> dict[str, str]:
    """The host variables that a started program may need to find its files and terminal, and nothing else."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TERM", "TZ")
    return {name: os.environ[name] for name in kept if name in os.environ}


def invoking_user() -> str | None:
    """Name of the person who called through sudo, if any."""
    return os.environ.get("SUDO_USER") or None


def _explain(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{variable_of(str(p['loc'][0]))}: {p['msg'].removeprefix('Value error, ')}" for p in problems)


def _is_secret(field: FieldInfo) -> bool:
    return "SecretStr" in str(field.annotation)


def _is_duration(field: FieldInfo) -> bool:
    return field.annotation is float


def _show(value: object, field: FieldInfo) -> str:
    if value is None:
        return ""
    if _is_secret(field):
        return "********"
    if _is_duration(field) and isinstance(value, float):
        return format_duration(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, float):
        return format_duration(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def render_table() -> str:
    """Write the settings as the Markdown page that stands in docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Made by `python -m space.base.settings`; do not edit. Every part reads these variables and no other; an",
        "unknown `SPACE_*` variable is refused. Durations are a number and a unit (`250ms`, `30s`, `5m`, `2h`, `1d`).",
        "",
        "| variable | default | meaning | why |",
        "|---|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        extra = field.json_schema_extra
        why = str(extra["why"]) if isinstance(extra, dict) else ""
        default = _show(field.default, field) if field.default is not None else "unset"
        lines.append(f"| `{variable_of(name)}` | `{default}` | {field.description} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_table())
