"""The deployment's certificates, made by the controller's own code and given to the controller's user."""

import os

from space.controller import ca
from space.supervisor.layout import Places
from space.supervisor.users import CONTROLLER, Account


def ensure(places: Places, accounts: dict[str, Account]) -> None:
    """Make the CA and the controller's certificate when missing; the certificate of the CA is for everyone."""
    ca.ensure_ca(places.state)
    places.ca.chmod(0o755)  # everyone may have the authority's certificate; the keys in here are 0400
    owner = accounts[CONTROLLER]
    for file in places.ca.iterdir():
        os.chown(file, owner.uid, owner.gid)
        file.chmod(0o444 if file.name == "ca.crt" else 0o400)
