"""Where the platform is and with which key: from ``SPACE_*`` or from the file that ``space up`` wrote."""

import json
import os
import pwd
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from space.base.settings import Settings, given_fields, invoking_user
from space.cli.problems import CliError


@dataclass(frozen=True)
class Context:
    """What a client needs to know."""

    api_url: str
    data_plane_url: str
    api_token: str
    template: str = "seed:latest"


def home_of(user: str | None) -> Path:
    """Home of ``user``, or else ``$HOME``, as every other tool reads it."""
    return Path(pwd.getpwnam(user).pw_dir) if user else Path.home()


def context_file(user: str | None = None) -> Path:
    """Where a user's context stands."""
    return home_of(user) / ".config" / "space" / "context.json"


def load(settings: Settings) -> Context:
    """Take the environment first, the context file for what it does not say."""
    stored = _stored()
    given = given_fields()
    token = settings.api_token.get_secret_value() if settings.api_token else stored.get("api_token")
    if not token:
        raise CliError(
            "no platform is known to this user",
            f"start one with `sudo space up -d`, or set SPACE_API_URL and SPACE_API_TOKEN (looked at {context_file()})",
            code="no_context",
        )
    api_url = settings.public_api_url if "api_url" in given else stored.get("api_url", settings.public_api_url)
    data_plane = settings.public_data_plane_url
    if "data_plane_url" not in given:
        data_plane = stored.get("data_plane_url", data_plane)
    template = settings.template if "template" in given else stored.get("template", settings.template)
    return Context(api_url.rstrip("/"), data_plane.rstrip("/"), token, template)


def _stored() -> dict[str, str]:
    try:
        found = json.loads(context_file(invoking_user()).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CliError(
            f"cannot read {context_file()}: {error}", "remove the file and run `sudo space up -d`"
        ) from error
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}


def save(context: Context, user: str | None = None) -> Path:
    """Write the context for the person who called through sudo (else for the running user), readable by them alone.

    Root writes below a directory that the user controls: each step is taken by descriptor and follows no link.
    """
    owner = user if user is not None else invoking_user()
    entry = pwd.getpwnam(owner) if owner else pwd.getpwuid(os.getuid())
    here = os.open(home_of(owner), os.O_DIRECTORY | os.O_RDONLY)
    try:
        for name in (".config", "space"):
            here = _enter(here, name, entry.pw_uid, entry.pw_gid)
        _replace(here, "context.json", json.dumps(asdict(context), indent=2) + "\n", entry.pw_uid, entry.pw_gid)
    finally:
        os.close(here)
    return context_file(owner)


def _enter(parent: int, name: str, uid: int, gid: int) -> int:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
        os.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)
    except FileExistsError:
        pass
    child = os.open(name, os.O_DIRECTORY | os.O_RDONLY | os.O_NOFOLLOW, dir_fd=parent)
    os.close(parent)
    return child


def _replace(parent: int, name: str, text: str, uid: int, gid: int) -> None:
    temporary = f".{name}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR)
        os.fchown(file.fileno(), uid, gid)
        file.write(text)
    os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
