"""Directories and keys of one host, each readable by exactly the parts that need it."""

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from space.base.settings import Settings
from space.supervisor.launch import closed_ancestor
from space.supervisor.users import API, CONTROLLER, DATAPLANE, Account


class LayoutError(Exception):
    """The state or run directory cannot be used."""


@dataclass(frozen=True)
class Places:
    """Where things lie on this host."""

    state: Path
    run: Path

    @classmethod
    def of(cls, settings: Settings) -> "Places":
        """Places under the settings' directories."""
        return cls(settings.state_dir, settings.run_dir)

    @property
    def log(self) -> Path:
        """Log files, one a part."""
        return self.state / "log"

    @property
    def pid_file(self) -> Path:
        """Pid of the running supervisor."""
        return self.run / "supervisor.pid"

    @property
    def status_file(self) -> Path:
        """What the supervisor last saw of its parts, as JSON."""
        return self.run / "status.json"

    @property
    def ca(self) -> Path:
        """Deployment CA and the controller's certificate."""
        return self.state / "ca"

    @property
    def node(self) -> Path:
        """The worker's certificate, key and name."""
        return self.state / "node"

    @property
    def operator_key(self) -> Path:
        """The operator's API key that `space up` made; root only."""
        return self.state / "keys" / "operator.token"


def _directory(path: Path, mode: int, uid: int = 0, gid: int = 0) -> None:
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, uid, gid)
    path.chmod(mode)


def make_directories(places: Places, accounts: dict[str, Account]) -> None:
    """Make what is missing and set owners and modes again, as a restored backup may have lost them."""
    for top in (places.state, places.run):
        top.mkdir(parents=True, exist_ok=True)
        top.chmod(0o755)
        closed = closed_ancestor(top.resolve())
        if closed is not None:
            raise LayoutError(
                f"{top} lies under {closed}, which the parts' own users cannot enter; choose another place"
            )
    controller, dataplane = accounts[CONTROLLER], accounts[DATAPLANE]
    _directory(places.state / "postgres", 0o755)  # root's; the data folder in it is space-postgres's alone
    _directory(places.state / "keys", 0o755)
    _directory(places.ca, 0o750, controller.uid, controller.gid)
    _directory(places.node, 0o700)
    _directory(places.log, 0o755)
    link = places.log / "postgres.log"
    if not link.is_symlink():
        link.symlink_to("../postgres/data.log")
    _directory(places.run / "worker", 0o750, 0, dataplane.gid)
    # Where an unprivileged part may write at all.
    for name in (API, CONTROLLER, DATAPLANE):
        _directory(places.run / name.removeprefix("space-"), 0o700, accounts[name].uid, accounts[name].gid)


def ensure_token_key(places: Places, accounts: dict[str, Account]) -> None:
    """Make the Ed25519 pair of the data-plane tokens; the private half is the API's alone."""
    private, public = places.state / "keys" / "data-plane.key", places.state / "keys" / "data-plane.pub"
    if not private.exists():
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(private, pem, accounts[API])
        public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    os.chown(private, accounts[API].uid, accounts[API].gid)
    private.chmod(0o400)
    public.chmod(0o444)


def write_private(path: Path, data: bytes, owner: Account | None = None) -> None:
    """Write a file that was never readable by another uid, in one step."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if owner is not None:
            os.fchown(file.fileno(), owner.uid, owner.gid)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
